test-vllm:
	scripts/test-vllm
.PHONY: test-vllm

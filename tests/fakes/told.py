"""A loopback server that answers GETs with what it was told, as a stranger's server might."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VLLM_METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="32",cache_dtype="auto",enable_prefix_caching="{caching}",engine="0",\
kv_cache_size_tokens="{tokens}",num_gpu_blocks="1456",prefix_caching_hash_algo="{algorithm}"}} 1.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {prompted}
# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} 64.0
vllm:prefix_cache_hits_created{{engine="0",model_name="m"}} 1.7e+09
# TYPE vllm:external_prefix_cache_queries_total counter
vllm:external_prefix_cache_queries_total{{engine="0",model_name="m"}} {asked}
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{{engine="0",model_name="m"}} {found}
"""
CONNECTED = """\
# TYPE kvist_connector_detached gauge
kvist_connector_detached{{engine="0",model_name="m"}} {detached}
# TYPE kvist_requests_bypassed counter
kvist_requests_bypassed_total{{engine="0",model_name="m"}} {bypassed}
# TYPE kvist_stores counter
kvist_stores_total{{engine="0",model_name="m",outcome="done"}} {stored}
# TYPE kvist_tier_breaker gauge
kvist_tier_breaker{{engine="0",model_name="m",tier="pool",state="open"}} {broken}
kvist_tier_breaker{{engine="0",model_name="m",tier="pool",state="closed"}} 1.0
"""


def vllm_metrics(*, connected: bool = True, **values: object) -> str:
    """What /metrics of a vLLM shows, as far as it matters to Kvist."""
    usual: dict[str, object] = {"caching": True, "tokens": 46_592, "algorithm": "sha256_cbor"}
    usual |= {"asked": 4096.0, "found": 2048.0, "prompted": 4096.0}
    ours: dict[str, object] = {"detached": 0.0, "bypassed": 0.0, "stored": 64.0, "broken": 0.0}
    return (VLLM_METRICS + (CONNECTED if connected else "")).format(**usual | ours | values)


@contextmanager
def told(answers: Mapping[str, tuple[int, bytes]]) -> Iterator[str]:
    """Serves answers by path, 404 elsewhere; yields the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, b""))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except ConnectionError:
                self.close_connection = True  # who asked had enough

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002  the base class's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

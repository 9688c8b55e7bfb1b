"""Kvist under vLLM: the scheduler's side decides with the fabric, workers copy between shared memory and KV.

Nothing here imports vLLM: its objects are read in `reading`, its releases are told apart in `versions`, and the class
that it loads is `kvist.app.vllm`. So both sides run, and are tested, without it.
"""

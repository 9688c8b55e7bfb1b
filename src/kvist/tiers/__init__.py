"""Where copies of blocks lie below the engine: host memory, a local disk, a pool shared by hosts."""

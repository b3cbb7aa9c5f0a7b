# Two images:
#   docker build --target control -t dflashq .          the dflashq command, monitor and Flower; no GPU
#   docker build --target worker  -t dflashq-worker .   the same, and SGLang in /opt/engine

# nvcc must be of the CUDA version that the engine's PyTorch was built for; the build compares them.
ARG CUDA_IMAGE=nvidia/cuda:13.0.2-devel-ubuntu24.04
# Debian 12: its glibc is older than that of the CUDA image, which borrows this Python.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS python

FROM python AS build
WORKDIR /src
RUN python -m venv /opt/dflashq
COPY setup.cfg pyproject.toml README.md LICENSE ./
COPY dflashq dflashq
COPY workers workers
# The engine's version stands in one place, the extra `sglang` of setup.cfg.
RUN /opt/dflashq/bin/pip install --no-cache-dir '.[flower,monitor]' \
    && python -c "import configparser as c; setup = c.RawConfigParser(); setup.read('setup.cfg'); \
print(setup['options.extras_require']['sglang'].strip())" > /opt/engine.txt

FROM python AS control
# tini reaps what the processes leave behind.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home dflashq
COPY --from=build /opt/dflashq /opt/dflashq
ENV PATH=/opt/dflashq/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/dflashq
ENTRYPOINT ["tini", "--"]
CMD ["dflashq", "--help"]

# hadolint ignore=DL3006
FROM ${CUDA_IMAGE} AS worker
# A C compiler for Triton, libnuma for SGLang's kernels, the rest for Python.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini ca-certificates gcc g++ libnuma1 \
       libbz2-1.0 libexpat1 libffi8 liblzma5 libncursesw6 libreadline8t64 libsqlite3-0 libssl3t64 \
       libuuid1 zlib1g \
    && rm -rf /var/lib/apt/lists/*
COPY --from=python /usr/local /usr/local
RUN ldconfig && python3.11 -c "import bz2, ctypes, lzma, readline, sqlite3, ssl, uuid, zlib"
COPY --from=build /opt/engine.txt /opt/engine.txt
RUN python3.11 -m venv /opt/engine \
    && /opt/engine/bin/pip install --no-cache-dir -r /opt/engine.txt \
    && wanted="$(/opt/engine/bin/python -c 'import torch; print(torch.version.cuda)')" \
    && nvcc --version > /tmp/nvcc.txt \
    && { grep -F "release ${wanted}," /tmp/nvcc.txt \
         || { echo "PyTorch is built for CUDA ${wanted}: choose another CUDA_IMAGE"; exit 1; }; } \
    && rm /tmp/nvcc.txt
COPY --from=build /opt/dflashq /opt/dflashq
# Folders that compose mounts volumes on: a new volume takes their owner.
RUN useradd --uid 10001 --create-home dflashq \
    && install -d -o dflashq -g dflashq /home/dflashq/.cache /home/dflashq/.local/state/dflashq \
    && install -d -m 1777 /tmp/dflashq-locks
ENV PATH=/opt/dflashq/bin:/opt/engine/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CUDA_HOME=/usr/local/cuda \
    DFLASHQ_ENGINE_PYTHON=/opt/engine/bin/python
USER 10001
WORKDIR /home/dflashq
ENTRYPOINT ["tini", "--"]
CMD ["celery", "-A", "workers", "worker", "--loglevel", "INFO"]

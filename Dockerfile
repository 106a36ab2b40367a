# docker build --tag das .                    das on a CPU; `docker run das` compares a training with and without drafts
# docker build --tag das --target cuda .      das on NVIDIA GPUs; `docker run --gpus all das` says what works there
#
# Neither image has been built yet, because no machine with Docker was at hand. The commands of the CPU image were run
# one by one in a fresh virtual environment without gcc. --build-arg PIP_EXTRA_INDEX_URL=... may name PyTorch's index of
# CPU builds, which are 3 GB smaller (docs/install.md).

FROM python:3.11.13-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY das das
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM scratch AS harness
COPY run.py /
COPY configs /configs
COPY experiments /experiments
COPY rewards /rewards
COPY analysis /analysis

# This base has gcc, with which Triton compiles its launchers. torch brings CUDA's libraries, the host its driver.
FROM python:3.11.13-bookworm AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY requirements/gpu.txt /requirements/
RUN pip install --no-cache-dir --requirement /requirements/gpu.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl && useradd --create-home --uid 1000 das
USER 1000
WORKDIR /home/das
COPY --from=harness --chown=1000 / ./
CMD ["python", "-m", "das", "doctor"]

FROM python:3.11.13-slim-bookworm AS cpu
# vLLM's kernels for CPUs are linked to libnuma.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1=2.0.16-1 \
    && rm -rf /var/lib/apt/lists/*
ARG PIP_EXTRA_INDEX_URL
COPY requirements/cpu.txt /requirements/
# In the order of the Makefile: torch with what it needs, then a complete list.
RUN pip install --no-cache-dir "$(grep '^torch==' /requirements/cpu.txt)" \
    && pip install --no-cache-dir --no-deps --requirement /requirements/cpu.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl && useradd --create-home --uid 1000 das
USER 1000
WORKDIR /home/das
COPY --from=harness --chown=1000 / ./
CMD ["python", "run.py"]

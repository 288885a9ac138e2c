# One image for every part of Amend; the command says which: amend service | worker | scheduler | migrate | mlflow.
#
#   docker build --build-arg TORCH_INDEX=... -t amend:cpu .       for CPUs, the default target
#   docker build --target cuda -t amend:cuda .                    for NVIDIA GPUs
#
# TORCH_INDEX is the address of a package index with CPU builds of PyTorch: PyTorch's own, which its page "Get started"
# shows for "Pip" and "CPU", or a mirror of it. All else comes from the index that pip uses anyway.

ARG PYTHON=3.11

# With compilers, for platforms that lack a wheel of something; nothing of this stage but /opt/amend gets further.
FROM python:${PYTHON}-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/amend
ENV PATH=/opt/amend/bin:${PATH}
WORKDIR /source

FROM build AS requirements
COPY pyproject.toml ./
RUN python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
    extras = project['optional-dependencies']; \
    print(*project['dependencies'], *extras['server'], *extras['s3'], *extras['ray'], sep='\n')" > requirements.txt

# "+cpu" is part of the version, and only an index of CPU builds has it: nothing of CUDA is ever fetched.
FROM requirements AS cpu-packages
ARG TORCH_INDEX=""
RUN --mount=type=cache,target=/root/.cache/pip \
    sed -n 's/^torch==.*/&+cpu/p' requirements.txt > torch.txt; \
    pip install ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} -r torch.txt \
    || { echo "No CPU build of torch was found: give --build-arg TORCH_INDEX=..., see the Dockerfile." >&2; exit 1; }
RUN --mount=type=cache,target=/root/.cache/pip pip install -r requirements.txt

# The default build of torch for Linux brings CUDA's libraries with it; of the host it needs the driver alone.
FROM requirements AS cuda-packages
RUN --mount=type=cache,target=/root/.cache/pip pip install -r requirements.txt

# Amend itself, in a layer of its own: a new version of it changes a megabyte of the image.
FROM build AS application
COPY . ./
# The wheel is the client and the command alone; the server's parts go beside it, compiled as pip does it.
RUN pip install --no-cache-dir --no-deps --prefix=/application . \
    && cp -r bench core migrations service worker /application/lib/python*/site-packages \
    && python -m compileall -q /application

FROM python:${PYTHON}-slim-bookworm AS runtime
LABEL org.opencontainers.image.title="Amend" \
      org.opencontainers.image.description="Keeps a deployed model current, and makes it forget, without retraining it." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="The Amend authors"
# New volumes are owned as these folders are.
RUN groupadd --gid 10001 amend \
    && useradd --uid 10001 --gid amend --no-log-init --home-dir /var/lib/amend --shell /usr/sbin/nologin amend \
    && install --directory --owner=amend --group=amend --mode=700 \
        /var/lib/amend /var/lib/amend/artifacts /var/lib/mlflow
ENV PATH=/opt/amend/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    AMEND_HOME=/var/lib/amend \
    AMEND_HOST=0.0.0.0 \
    MPLCONFIGDIR=/tmp/matplotlib
USER 10001:10001
WORKDIR /var/lib/amend
EXPOSE 8000
# Of the service; docker-compose.yml has those of the other parts.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
CMD ["amend", "service"]

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-packages /opt/amend /opt/amend
COPY --from=application /application /opt/amend

FROM runtime AS cpu
COPY --from=cpu-packages /opt/amend /opt/amend
COPY --from=application /application /opt/amend

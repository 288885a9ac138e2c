# One image for all parts of Amend; the command selects one: amend service | worker | scheduler | migrate | mlflow.
#
#   docker build --build-arg TORCH_INDEX=... -t amend:cpu .                  for CPUs, the default target
#   docker build --build-arg TORCH_INDEX=... --target ray -t amend:ray .     the same, with Ray
#   docker build --target cuda -t amend:cuda .                               for NVIDIA GPUs, with Ray
#
# TORCH_INDEX is the URL of a package index with CPU builds of PyTorch: PyTorch's own, which its "Get started" page
# shows for "Pip" and "CPU", or a mirror. Everything else comes from the index that pip uses by default, in the versions of
# constraints.txt.

ARG PYTHON=3.11

# Has compilers, for platforms without wheels of some packages. Only /opt/amend is copied from this stage.
FROM python:${PYTHON}-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/amend
ENV PATH=/opt/amend/bin:${PATH}
WORKDIR /source

FROM build AS requirements
COPY pyproject.toml ./
RUN python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
    extras = project['optional-dependencies']; \
    open('ray.txt', 'w').write('\n'.join(extras['ray'])); \
    print(*project['dependencies'], *extras['server'], *extras['s3'], sep='\n')" > requirements.txt

# A change of pyproject.toml that leaves the requirements as they are installs nothing again.
FROM build AS pinned-requirements
COPY constraints.txt ./
COPY --from=requirements /source/requirements.txt /source/ray.txt ./

# Only an index of CPU builds has versions with "+cpu", so CUDA libraries are never downloaded.
FROM pinned-requirements AS cpu-packages
ARG TORCH_INDEX=""
RUN --mount=type=cache,target=/root/.cache/pip \
    sed -n 's/^torch==.*/&+cpu/p' requirements.txt > torch.txt; \
    pip install ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} -r torch.txt \
    || { echo "No CPU build of torch was found. Pass --build-arg TORCH_INDEX=... (see the Dockerfile)." >&2; exit 1; }
RUN --mount=type=cache,target=/root/.cache/pip pip install -c constraints.txt -r requirements.txt

# Only the packages that Ray adds, for a layer of its own.
FROM cpu-packages AS ray-packages
RUN --mount=type=cache,target=/root/.cache/pip pip install --prefix=/ray -c constraints.txt -r ray.txt
COPY deploy/prune-packages.sh ./
RUN sh prune-packages.sh /ray

FROM cpu-packages AS pruned-packages
COPY deploy/prune-packages.sh ./
RUN sh prune-packages.sh /opt/amend

# Lists of the packages in the images, in CycloneDX's format.
FROM build AS lister
COPY constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv /lister && /lister/bin/pip install -c constraints.txt cyclonedx-bom && mkdir /list
COPY pyproject.toml ./

FROM lister AS cpu-list
RUN --mount=type=bind,from=pruned-packages,source=/opt/amend,target=/opt/amend \
    /lister/bin/cyclonedx-py environment --pyproject pyproject.toml -o /list/sbom.cdx.json /opt/amend/bin/python

FROM pruned-packages AS pruned-packages-with-ray
COPY --from=ray-packages /ray /opt/amend

FROM lister AS ray-list
RUN --mount=type=bind,from=pruned-packages-with-ray,source=/opt/amend,target=/opt/amend \
    /lister/bin/cyclonedx-py environment --pyproject pyproject.toml -o /list/sbom.cdx.json /opt/amend/bin/python

# The default build of torch for Linux includes the CUDA libraries; the host only needs the driver.
FROM pinned-requirements AS cuda-packages
RUN --mount=type=cache,target=/root/.cache/pip pip install -c constraints.txt -r requirements.txt -r ray.txt
COPY deploy/prune-packages.sh ./
RUN sh prune-packages.sh /opt/amend

# Amend itself in a separate layer, so that a new version changes one megabyte of the image.
FROM build AS application
COPY . ./
# The wheel has only the client and the command. Copy the server's packages next to it and compile them, as pip would.
RUN pip install --no-cache-dir --no-deps --prefix=/application . \
    && cp -r bench core migrations service worker /application/lib/python*/site-packages \
    && python -m compileall -q /application

FROM python:${PYTHON}-slim-bookworm AS runtime
LABEL org.opencontainers.image.title="Amend" \
      org.opencontainers.image.description="Keeps deployed models up to date and makes them forget data without retraining." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="The Amend authors"
# The OpenMP library that LightGBM loads.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
# New volumes get the ownership of these folders.
RUN groupadd --gid 10001 amend \
    && useradd --uid 10001 --gid amend --no-log-init --home-dir /var/lib/amend --shell /usr/sbin/nologin amend \
    && install --directory --owner=amend --group=amend --mode=700 \
        /var/lib/amend /var/lib/amend/artifacts /var/lib/mlflow
ENV PATH=/opt/amend/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    AMEND_HOME=/var/lib/amend \
    AMEND_HOST=0.0.0.0 \
    MPLCONFIGDIR=/tmp/matplotlib \
    ORT_DISABLE_TELEMETRY=1
USER 10001:10001
WORKDIR /var/lib/amend
EXPOSE 8000
# For the service; docker-compose.yml has the health checks of the other parts.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
CMD ["amend", "service"]

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-packages /opt/amend /opt/amend
COPY --from=application /application /opt/amend
ARG VERSION="" REVISION="" CREATED="" SOURCE=""
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" org.opencontainers.image.source="${SOURCE}"

FROM runtime AS packaged
COPY --from=pruned-packages /opt/amend /opt/amend
COPY --from=application /application /opt/amend

FROM packaged AS ray
COPY --from=ray-packages /ray /opt/amend
COPY --from=ray-list /list /opt/amend
ARG VERSION="" REVISION="" CREATED="" SOURCE=""
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" org.opencontainers.image.source="${SOURCE}"

FROM packaged AS cpu
COPY --from=cpu-list /list /opt/amend
ARG VERSION="" REVISION="" CREATED="" SOURCE=""
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" org.opencontainers.image.source="${SOURCE}"

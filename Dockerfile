# The agent as an image: non-root, for a read-only root file system with one writable directory.
#   docker build --tag azure-scheduled-events-exporter .                              (this machine's architecture)
#   docker buildx build --platform linux/amd64,linux/arm64 --tag … .                  (wheels exist for both: make -C deploy platforms)
#   docker run --network host --read-only --cap-drop ALL --volume azse:/var/lib/azure-scheduled-events-exporter …
# Set settings by environment (SCHEDULED_EVENTS_…) or --config.file. Use the host network: the metadata service answers only
# requests that come from the VM's own address.
# The base image is pinned by digest, so that the same file gives the same image: the tag as published on 25 August 2026, with
# Python 3.11.16, for all architectures. Update it at each release:
#   docker buildx imagetools inspect python:3.11-slim-bookworm
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b

FROM ${PYTHON_IMAGE} AS build
# Byte code is validated by hash, not by time, so that the same input gives the same directory.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
WORKDIR /src
RUN python3 -m venv /opt/agent
COPY deploy/constraints.txt deploy/build.txt deploy/
# Versions and hashes are locked, also of the build requirements of the agent's wheel. Only wheels are installed, so that no
# compiler and no third-party build script runs.
RUN /opt/agent/bin/pip install --require-hashes --only-binary :all: \
    --requirement deploy/constraints.txt --requirement deploy/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY exporter exporter
RUN /opt/agent/bin/pip install --no-deps --no-build-isolation . \
 && /opt/agent/bin/pip uninstall --yes --requirement deploy/build.txt setuptools pip \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/agent/lib
COPY deploy/healthcheck.py /opt/agent/healthcheck.py
RUN mkdir -p /state/azure-scheduled-events-exporter /places/azure-scheduled-events-exporter \
 && chown 65532:65532 /state/azure-scheduled-events-exporter

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="azure-scheduled-events-exporter" \
      org.opencontainers.image.description="Azure Scheduled Events as Prometheus metrics, OpenTelemetry logs, and Event Hubs messages" \
      org.opencontainers.image.licenses="MIT"
COPY --from=build /opt/agent /opt/agent
# The owner must be set before VOLUME: a new named volume copies it.
COPY --from=build /state/ /var/lib/
# The directory of approval.hold_file, for a mount. If it were missing, all events would be held.
COPY --from=build /places/ /etc/
# MALLOC_ARENA_MAX: with more arenas, glibc keeps freed memory for each thread.
ENV PATH=/opt/agent/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 MALLOC_ARENA_MAX=2
# Numeric, so that Kubernetes can verify that it isn't root (runAsNonRoot).
USER 65532:65532
VOLUME ["/var/lib/azure-scheduled-events-exporter"]
EXPOSE 10169
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s --retries=3 CMD ["python3", "/opt/agent/healthcheck.py"]
ENTRYPOINT ["azure-scheduled-events-exporter"]
CMD ["run"]

# The agent as an image: non-root, meant for a read-only root file system, one writable folder.
#   docker build --tag azure-scheduled-events-exporter .                              (this machine's architecture)
#   docker buildx build --platform linux/amd64,linux/arm64 --tag … .                  (all wheels exist for both: make -C deploy platforms)
#   docker run --network host --read-only --cap-drop ALL --volume azse:/var/lib/azure-scheduled-events-exporter …
# Settings come by environment (SCHEDULED_EVENTS_…) or --config.file. Host network: the metadata service answers 169.254.169.254
# only for requests that come from the VM's own address.
# By digest, so that the same file gives the same image: the tag as published on 25 August 2026, Python 3.11.16, for all its
# architectures. Renewed at each release: docker buildx imagetools inspect python:3.11-slim-bookworm
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b

FROM ${PYTHON_IMAGE} AS build
# Files of byte code that carry a hash, not a time, so that the same input gives the same folder.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
WORKDIR /src
RUN python3 -m venv /opt/agent
COPY deploy/constraints.txt deploy/build.txt deploy/
# Versions and hashes are locked, of what builds our own wheel too; only wheels, so that no compiler and no foreign build
# script runs.
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
      org.opencontainers.image.description="Azure scheduled events as Prometheus metrics, OpenTelemetry logs and Event Hubs messages" \
      org.opencontainers.image.licenses="MIT"
COPY --from=build /opt/agent /opt/agent
# The owner has to be there before VOLUME: a new named volume takes it over.
COPY --from=build /state/ /var/lib/
# The folder of approval.hold_file, to be mounted from outside; where it is missing a hold file holds for ever.
COPY --from=build /places/ /etc/
# MALLOC_ARENA_MAX: of the memory that each thread once needed, glibc would keep some for every one of them.
ENV PATH=/opt/agent/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 MALLOC_ARENA_MAX=2
# A number, so that Kubernetes can tell that it is not root (runAsNonRoot).
USER 65532:65532
VOLUME ["/var/lib/azure-scheduled-events-exporter"]
EXPOSE 10169
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s --retries=3 CMD ["python3", "/opt/agent/healthcheck.py"]
ENTRYPOINT ["azure-scheduled-events-exporter"]
CMD ["run"]

# A domain owner's side. Build from the repository's root:
#   docker build -f deploy/worker.Dockerfile --build-arg COMMIT=$(git rev-parse HEAD) -t moerge-worker .
FROM python:3.11-slim

WORKDIR /opt/moerge
COPY constraints.txt pyproject.toml README.md LICENSE ./
RUN pip install --no-cache-dir --constraint constraints.txt torch==2.13.0
COPY proto proto
COPY services services
COPY workers workers
COPY coordinator coordinator
ARG COMMIT=
RUN echo "$COMMIT" > services/moerge/commit \
    && pip install --no-cache-dir --constraint constraints.txt '.[worker]' \
    && useradd --create-home moerge \
    && install --directory --owner moerge /var/lib/moerge

USER moerge
VOLUME /var/lib/moerge
ENTRYPOINT ["moerge"]
CMD ["worker", "run", "--help"]

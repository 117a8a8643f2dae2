# The operator's side. Build from the repository's root:
#   docker build -f deploy/coordinator.Dockerfile --build-arg COMMIT=$(git rev-parse HEAD) -t moerge-coordinator .
# In a closed network: --build-arg PYTHON_IMAGE=registry.example.org/python:3.11-slim --build-arg PIP_INDEX_URL=https://...
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim
FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
ARG PIP_INDEX_URL=https://pypi.org/simple
# The coordinator needs no GPU, so torch's CPU build is enough. Its index lacks some of torch's dependencies.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/moerge
COPY constraints.txt ./
RUN /opt/moerge/bin/pip install --no-cache-dir --constraint constraints.txt --index-url ${TORCH_INDEX_URL} --no-deps torch==2.13.0
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY proto proto
COPY services services
COPY workers workers
COPY coordinator coordinator
RUN /opt/moerge/bin/pip install --no-cache-dir --index-url ${PIP_INDEX_URL} --constraint constraints.txt '.[coordinator]'
ARG COMMIT=
RUN echo "$COMMIT" > "$(/opt/moerge/bin/python -c 'import moerge; print(moerge.__path__[0])')/commit"

FROM ${PYTHON_IMAGE}
ARG COMMIT=
LABEL org.opencontainers.image.title="moerge coordinator" org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.revision="$COMMIT"
RUN useradd --uid 1000 --create-home moerge \
    && install --directory --owner moerge --mode 0700 /srv/moerge
COPY --from=build /opt/moerge /opt/moerge
ENV PATH=/opt/moerge/bin:$PATH
USER 1000
VOLUME /srv/moerge
EXPOSE 8080
# Any answer will do, because the certificate is for another name than this machine's.
HEALTHCHECK CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 8080), 5)"]
ENTRYPOINT ["moerge"]
CMD ["coordinator", "serve", "/srv/moerge"]

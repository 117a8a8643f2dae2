# A domain owner's side. Build from the repository's root:
#   docker build -f deploy/worker.Dockerfile --build-arg COMMIT=$(git rev-parse HEAD) -t moerge-worker .
# Without a GPU: --build-arg TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu --build-arg TORCH_OPTIONS=--no-deps
# In a closed network: --build-arg PYTHON_IMAGE=registry.example.org/python:3.11-slim --build-arg PIP_INDEX_URL=https://...
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim
FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
ARG PIP_INDEX_URL=https://pypi.org/simple
ARG TORCH_INDEX_URL=${PIP_INDEX_URL}
ARG TORCH_OPTIONS=
RUN python -m venv /opt/moerge
COPY constraints.txt ./
RUN /opt/moerge/bin/pip install --no-cache-dir --constraint constraints.txt --index-url ${TORCH_INDEX_URL} ${TORCH_OPTIONS} torch==2.13.0
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY proto proto
COPY services services
COPY workers workers
COPY coordinator coordinator
RUN /opt/moerge/bin/pip install --no-cache-dir --index-url ${PIP_INDEX_URL} --constraint constraints.txt '.[worker]'
ARG COMMIT=
RUN echo "$COMMIT" > "$(/opt/moerge/bin/python -c 'import moerge; print(moerge.__path__[0])')/commit"

FROM ${PYTHON_IMAGE}
ARG COMMIT=
LABEL org.opencontainers.image.title="moerge worker" org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.revision="$COMMIT"
RUN useradd --uid 1000 --create-home moerge \
    && install --directory --owner moerge --mode 0700 /var/lib/moerge
COPY --from=build /opt/moerge /opt/moerge
ENV PATH=/opt/moerge/bin:$PATH
USER 1000
VOLUME /var/lib/moerge
ENTRYPOINT ["moerge"]
CMD ["worker", "run", "--help"]

# The operator's side. Build from the repository's root:
#   docker build -f deploy/coordinator.Dockerfile --build-arg COMMIT=$(git rev-parse HEAD) -t moerge-coordinator .
FROM python:3.11-slim

WORKDIR /opt/moerge
COPY constraints.txt pyproject.toml README.md LICENSE ./
# The coordinator needs no GPU, so torch's CPU build is enough.
RUN pip install --no-cache-dir --constraint constraints.txt --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
COPY proto proto
COPY services services
COPY workers workers
COPY coordinator coordinator
ARG COMMIT=
RUN echo "$COMMIT" > services/moerge/commit \
    && pip install --no-cache-dir --constraint constraints.txt '.[coordinator]' \
    && useradd --create-home moerge \
    && install --directory --owner moerge /srv/moerge

USER moerge
VOLUME /srv/moerge
EXPOSE 8080
ENTRYPOINT ["moerge"]
CMD ["coordinator", "serve", "/srv/moerge", "--host", "0.0.0.0"]

# The agent's image: one static program, the authorities that it trusts, what it is made of, and licences.
#   docker build -t podperf .
#   docker buildx build --platform linux/amd64,linux/arm64 -t podperf .
# docs/image.md says what is where, and why.
ARG RUST=1.95
ARG DEBIAN=trixie

# Runs as the builder's architecture, and compiles for the image's.
FROM --platform=$BUILDPLATFORM docker.io/library/rust:${RUST}-${DEBIAN} AS build
ARG TARGETARCH
ARG CYCLONEDX=0.5.9

RUN set -eu; \
    case $TARGETARCH in \
    amd64) arch=x86_64 ;; \
    arm64) arch=aarch64 ;; \
    *) echo "no build for \`$TARGETARCH\` (podperf runs on amd64 and arm64)" >&2; exit 1 ;; \
    esac; \
    echo "$arch-unknown-linux-gnu" >/target; \
    packages="ca-certificates clang libclang-dev libbpf-dev jq"; \
    libc=libc6-dev; \
    if [ "$arch" != "$(uname -m)" ]; then \
        libc=libc6-dev-$TARGETARCH-cross; \
        packages="$packages gcc-$(echo $arch | tr _ -)-linux-gnu $libc linux-libc-dev-$TARGETARCH-cross"; \
    fi; \
    apt-get -q update; \
    DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $packages; \
    rm -rf /var/lib/apt/lists/*; \
    dpkg-query -W -f '${Version}' "$libc" >/libc-version; \
    [ -d "$(rustc --print target-libdir --target "$(cat /target)")" ] || rustup target add "$(cat /target)"

# Lists what is in the program. As old as its version, so it stays in the cache.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    cargo install --quiet --locked --root /usr/local "cargo-cyclonedx@$CYCLONEDX"

WORKDIR /src
COPY . .

# `dist` is what releases hold. `dev` is built in less time, and only tries this file out.
ARG PROFILE=dist
# `podperf --version` names these two, or says `unknown`. The same sources and values give the same bytes.
ARG REVISION=unknown
ARG SOURCE_DATE_EPOCH=

# Without shared libraries, so that the image holds none. What cargo built stays with the builder, for the next time.
# Sources of crates lie in a directory that is named after their registry: the program calls it `/crates` everywhere.
# Clang 16 and newer fail where SOURCE_DATE_EPOCH is set and empty, and so does cargo-cyclonedx.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,sharing=locked \
    set -eu; \
    target=$(cat /target); \
    name=$(echo "$target" | tr a-z- A-Z_); \
    export PODPERF_COMMIT="$REVISION" SOURCE_DATE_EPOCH; \
    [ -n "${SOURCE_DATE_EPOCH:-}" ] || unset SOURCE_DATE_EPOCH; \
    cargo fetch --quiet --locked --target "$target"; \
    rust=--remap-path-prefix=/src=/podperf c=-ffile-prefix-map=/src=/podperf; \
    for crates in "$CARGO_HOME"/registry/src/*; do \
        rust="$rust --remap-path-prefix=$crates=/crates" c="$c -ffile-prefix-map=$crates=/crates"; \
    done; \
    export CFLAGS="$c" \
        "CARGO_TARGET_${name}_RUSTFLAGS=-C target-feature=+crt-static -C force-frame-pointers=yes $rust"; \
    case $target in \
    "$(uname -m)"-*) ;; \
    *) export "CARGO_TARGET_${name}_LINKER=${target%%-*}-linux-gnu-gcc" ;; \
    esac; \
    cargo build --locked --profile "$PROFILE" --target "$target" -p podperf; \
    install -D -m 0555 "target/$target/$(echo "$PROFILE" | sed s/^dev$/debug/)/podperf" /out/usr/bin/podperf

# The C library is linked into the program, too, and no crate says so.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    set -eu; \
    [ -n "${SOURCE_DATE_EPOCH:-}" ] || unset SOURCE_DATE_EPOCH; \
    cargo cyclonedx --quiet --manifest-path agent/Cargo.toml --target "$(cat /target)" --no-build-deps \
        --format json --spec-version 1.5 --override-filename podperf.cdx; \
    mkdir -p /out/usr/share/podperf /out/usr/share/doc/podperf /out/etc/ssl/certs; \
    jq --arg version "$(cat /libc-version)" --arg arch "$TARGETARCH" \
        'del(.serialNumber, .metadata.timestamp) | .components += [{type: "library", name: "glibc", version: $version, scope: "required", \
            licenses: [{expression: "LGPL-2.1-or-later"}], \
            purl: "pkg:deb/debian/glibc@\($version)?arch=\($arch)", "bom-ref": "glibc"}]' \
        agent/podperf.cdx.json >/out/usr/share/podperf/sbom.cdx.json; \
    cp LICENSE ebpf/LICENSE-* /out/usr/share/doc/podperf/; \
    cp -L /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/; \
    find /out -type f ! -name podperf -exec chmod 0444 {} +; \
    find /out -type d -exec chmod 0555 {} +

FROM scratch
ARG VERSION=0.0.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="podperf" \
      org.opencontainers.image.url="https://github.com/podperf/podperf" \
      org.opencontainers.image.source="https://github.com/podperf/podperf" \
      org.opencontainers.image.documentation="https://github.com/podperf/podperf/blob/main/docs/README.md" \
      org.opencontainers.image.description="Why a pod is slow: CPU counters, scheduling and waits of every container" \
      org.opencontainers.image.licenses="Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
COPY --from=build /out/ /
# Kubernetes gives capabilities to root only; the pod's security context takes all but the named ones.
USER 0:0
ENTRYPOINT ["/usr/bin/podperf"]
CMD ["agent"]

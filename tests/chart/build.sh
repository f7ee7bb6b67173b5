#!/bin/sh
# Build what the chart ring runs: build.sh PROGRAM... (helm, helm-docs, jsonnet, operators) in target/chart, or $CHART_TOOLS.
# Prints the directory that holds them. A second run finds them there; another directory takes them from
# ~/.cache/podperf.
set -eu

who=chart
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/built-once.sh
. "$here/../built-once.sh"

# PROGRAM VERSION PACKAGE
programs() {
	cat <<-END
		helm v3.22.0 helm.sh/helm/v3/cmd/helm
		helm-docs v1.14.2 github.com/norwoodj/helm-docs/cmd/helm-docs
		jsonnet v0.22.0 github.com/google/go-jsonnet/cmd/jsonnet
		operators $(cat "$here"/operators/* | sha256sum | cut -c 1-16) -
	END
}

build() {
	if [ "$program" = operators ]; then
		rm -rf "$out/src" &&
			cp -r "$here/operators" "$out/src" &&
			cd "$out/src" &&
			nice go build -mod=mod -trimpath -ldflags='-s -w' -o "$built.part" .
		return
	fi
	# Helm's own Makefile stamps these: without them it takes itself for one of Kubernetes 1.20.
	stamp="-X helm.sh/helm/v3/internal/version.version=$version"
	for place in lint/rules chartutil; do
		stamp="$stamp -X helm.sh/helm/v3/pkg/$place.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$place.k8sVersionMinor=36"
	done
	GOBIN=$out/build nice go install -trimpath -ldflags="-s -w $stamp" "$package@$version" &&
		mv "$out/build/$program" "$built.part"
}

enter "${CHART_TOOLS:-$here/../../target/chart}"
mkdir -p "$out/bin"
for wanted; do
	line=$(programs | grep "^$wanted ") || {
		say "no program \`$wanted\` (helm, helm-docs, jsonnet, operators)"
		exit 2
	}
	read -r program version package <<-END
		$line
	END
	obtain "$program" "$version" "$program $version"
	# One name for the tests, whatever the version.
	ln -sfn "../$key" "$out/bin/$program"
done
echo "$out/bin"

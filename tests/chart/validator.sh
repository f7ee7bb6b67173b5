#!/bin/sh
# Installs kubernetes-validate, and prints the path of the program.
set -eu

# It holds the schemas of Kubernetes up to the minor version of its own.
version=1.37.0

exec "$(dirname "$0")/../python-once.sh" kubernetes-validate $version kubernetes-validate

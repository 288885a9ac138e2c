#!/bin/sh
# Remove from an environment of the image what no process of Amend loads: tests, headers and tools of packages, pip, and
# clients that MLflow depends on but Amend does not use (Docker, a task queue, a model format).
set -e
if [ -x "$1/bin/pip" ]; then
    "$1/bin/pip" uninstall --quiet --yes docker huey skops
    "$1/bin/pip" uninstall --quiet --yes pip
fi
find "$1" -path '*/site-packages/*' -type d \( -name test -o -name tests \) -prune -exec rm -rf {} +
for folder in torch/include torch/share pyarrow/include; do
    rm -rf "$1"/lib/python*/site-packages/"$folder"
done
find "$1" -path '*/site-packages/torch/bin/*' -not -name torch_shm_manager -delete

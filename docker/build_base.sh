#!/usr/bin/env bash
# Build a Debian base image where no image registry is at hand: debootstrap, then docker import.
#
#   docker/build_base.sh [IMAGE]        default: envgym-base
#   docker build --network host --build-arg BASE=envgym-base -t envgym-sandbox docker/sandbox
#
# Needs root, debootstrap and a Docker engine. MIRROR and SUITE are those of this machine's apt where they are not set.
set -euo pipefail

image="${1:-envgym-base}"
if [[ $EUID -ne 0 ]]; then
  echo "build_base.sh must run as root, got user $(id -un) (debootstrap makes device files); run it with sudo." >&2
  exit 1
fi
for program in debootstrap docker; do
  if ! command -v "$program" >/dev/null; then
    echo "$program must be installed, got no such program (build_base.sh); install Debian's package of that name." >&2
    exit 1
  fi
done

read -r apt_mirror apt_suite < <(
  apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(LABEL)' 'Created-By: Packages' 2>/dev/null |
    awk '$3 == "Debian" && $2 !~ /-/ { print $1, $2; exit }'
) || true
mirror="${MIRROR:-${apt_mirror:-}}"
suite="${SUITE:-${apt_suite:-}}"
if [[ -z $mirror || -z $suite ]]; then
  echo "MIRROR and SUITE must be known, got '$mirror' and '$suite' (build_base.sh); set them: this machine's apt names none." >&2
  exit 1
fi

root="$(mktemp -d)"
trap 'rm -rf --one-file-system "$root"' EXIT
debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror" >"$root.log" 2>&1 || {
  tail -n 5 "$root.log" >&2
  exit 1
}
rm -rf "$root.log" "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
chmod 755 "$root"
tar --create --numeric-owner --directory "$root" . | docker import --change 'CMD ["sh"]' - "$image" >/dev/null
echo "$image"

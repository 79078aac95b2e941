#!/bin/sh
# Users, folders and units of a server or of a site, in one step, as root:
#
#   sh setup.sh server      or      sh setup.sh site
#
# It can be run again: what is there stays. It expects fedclass in /opt/fedclass (a virtual environment) and starts
# nothing. ROOT=/some/folder does everything below that folder, without a user, to look at it first.
set -eu

role=${1:-}
case "$role" in
server | site) ;;
*) echo "usage: sh setup.sh server|site" >&2; exit 2 ;;
esac
here=$(dirname "$0")
root=${ROOT:-}
owner=fedclass

if [ -z "$root" ]; then
    [ "$(id -u)" = 0 ] || { echo "setup.sh: run it as root" >&2; exit 1; }
    getent group "$owner" > /dev/null || groupadd --system "$owner"
    getent passwd "$owner" > /dev/null ||
        useradd --system --gid "$owner" --home-dir /var/lib/fedclass --no-create-home --shell /usr/sbin/nologin "$owner"
fi

folder() { # path mode
    mkdir -p "$root$1"
    chmod "$2" "$root$1"
    [ -n "$root" ] || chown "$owner:$owner" "$root$1"
}
folder /etc/fedclass 0750
folder /var/lib/fedclass 0700
if [ "$role" = server ]; then
    folder /etc/fedclass/keys 0700
    folder /var/lib/fedclass/runs 0700
fi
mkdir -p "$root/etc/systemd/system"
cp "$here/fedclass-$role.service" "$root/etc/systemd/system/"
chmod 0644 "$root/etc/systemd/system/fedclass-$role.service"

if [ "$role" = server ]; then
    echo "next: sudo -u $owner /opt/fedclass/bin/fedclass deploy keys --out /etc/fedclass/keys --host NAME --site SITE ..."
else
    echo "next: put site.toml, ca.crt and the site's key (mode 0600, owner $owner) into /etc/fedclass"
fi
echo "then: systemctl daemon-reload && systemctl enable --now fedclass-$role"

#!/bin/bash
set -e
chgrp -R "$TEAM" /srv/share
find /srv/share -type d -exec chmod 2770 {} +
find /srv/share -type f -exec chmod 660 {} +
chown root:root /srv/share/secret.txt
chmod 600 /srv/share/secret.txt

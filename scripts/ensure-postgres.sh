#!/bin/sh
# Makes sure that the PostgreSQL server's programs are installed, since
# breakerbot and its tests run a private server from them. It installs nothing
# when they are there, or when DATABASE_URL names a server that runs elsewhere
# (tests always need the programs: call it with --always).
set -eu

# The folders in which breakerbot itself looks; see store/pgserver/find.go.
find_server() {
	for dir in ${PG_BINDIR:+"$PG_BINDIR"} "$(on_path)" \
		/usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
		/opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin \
		/home/linuxbrew/.linuxbrew/opt/postgresql*/bin; do
		if [ -x "$dir/postgres" ] && [ -x "$dir/initdb" ]; then
			echo "$dir"
			return 0
		fi
	done
	return 1
}

# The folder of the postgres on the PATH, with links resolved, or nothing.
on_path() {
	file=$(command -v postgres) || return 0
	while [ -L "$file" ]; do
		link=$(readlink "$file")
		case $link in
		/*) file=$link ;;
		*) file=$(dirname "$file")/$link ;;
		esac
	done
	dirname "$file"
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif ! command -v sudo >/dev/null 2>&1; then
		echo "ensure-postgres: this needs root and there is no sudo; run as root: apt-get install postgresql" >&2
		exit 1
	elif [ -t 0 ]; then
		sudo "$@"
	else
		sudo -n "$@" # nobody is there to type a password
	fi
}

# Debian's package makes a cluster that starts with the system and takes port
# 5432. Nothing here needs it, so it is told not to, for this installation only.
install_with_apt() {
	conf=/etc/postgresql-common/createcluster.d/00-breakerbot-install.conf
	as_root mkdir -p "$(dirname "$conf")"
	trap 'as_root rm -f "$conf"' EXIT
	trap 'exit 1' HUP INT TERM
	echo "create_main_cluster = false" | as_root tee "$conf" >/dev/null
	as_root apt-get update -qq
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql
	as_root rm -f "$conf"
	trap - EXIT HUP INT TERM
}

if [ -n "${DATABASE_URL:-}" ] && [ "${1:-}" != --always ]; then
	exit 0
fi
if find_server >/dev/null; then
	exit 0
fi

echo "PostgreSQL's server programs are not installed; installing them."
if command -v apt-get >/dev/null 2>&1; then
	install_with_apt
elif command -v brew >/dev/null 2>&1; then
	brew install postgresql@17
else
	echo "ensure-postgres: neither apt-get nor brew is here: install the PostgreSQL server with this system's package manager," >&2
	echo "set DATABASE_URL to one that runs elsewhere, or use: docker compose up" >&2
	exit 1
fi

if dir=$(find_server); then
	echo "PostgreSQL is in $dir"
else
	echo "ensure-postgres: it was installed, but there is no folder with postgres and initdb: set PG_BINDIR to it" >&2
	exit 1
fi

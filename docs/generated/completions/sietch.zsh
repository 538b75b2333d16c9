#compdef sietch

autoload -U is-at-least

_sietch() {
    typeset -A opt_args
    typeset -a _arguments_options
    local ret=1

    if is-at-least 5.2; then
        _arguments_options=(-s -S -C)
    else
        _arguments_options=(-s -C)
    fi

    local context curcontext="$curcontext" state line
    _arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
":: :_sietch_commands" \
"*::: :->sietch" \
&& ret=0
    case $state in
    (sietch)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:sietch-command-$line[1]:"
        case $line[1] in
            (up)
_arguments "${_arguments_options[@]}" : \
'--net=[Data path of the store]:NET:((auto\:"A VNIC if the daemon can make one, else kernel sockets"
af_xdp\:"A VNIC or nothing"
linux\:"Kernel sockets"))' \
'--durability=[When a reply to a write may leave \[default\: always\]]:DURABILITY:((always\:"After the write would survive power loss"
interval\:"At once; written within 20 ms, flushed every second"
never\:"At once; written within 20 ms, flushed only at the end"
none\:"At once; there is no log\: every key is lost when the store ends"))' \
'--port=[TCP port of the store \[default\: 6379\]]:PORT:_default' \
'--shards=[Cores that the store'\''s keys are divided among, a thread each; may change between two starts \[default\: one less than there are processors, at least 1\]]:CORES:_default' \
'--listen=[Where the store also answers on kernel sockets\: an address, an address with a port, or \`none\` \[default\: 127.0.0.1\]]:ADDRESS:_default' \
'--maxmemory=[Memory for keys and values, in bytes or with a unit (512mb, 2gb); 0 is no limit \[default\: 0\]]:BYTES:_default' \
'--maxmemory-policy=[What to do when that memory is full \[default\: noeviction\]]:POLICY:(noeviction allkeys-lru allkeys-lfu allkeys-random volatile-lru volatile-lfu volatile-random volatile-ttl)' \
'--vnic=[Name of the store'\''s VNIC \[default\: kv\]]:NAME:_default' \
'--vsa=[Name of the store'\''s storage area \[default\: kv\]]:NAME:_default' \
'--uplink=[Physical interface that joins the VNICs to a network, by XDP redirect]:IFACE:_default' \
'--config=[The configuration\: names, users, limits \[default\: /etc/sietch/sietch.toml for root, ~/.config/sietch/sietch.toml for others; made on first start\]]:FILE:_files' \
'--data=[The folder for data, state and logs \[default\: /var/lib/sietch for root, ~/.local/share/sietch for others\]]:DIR:_files' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--without-io-uring[Use epoll and pwritev2 even where io_uring works]' \
'(--detach)--foreground[Stay in the foreground until Ctrl-C (the default)]' \
'--detach[Return once the store is ready; \`sietch down\` stops it]' \
'--detached[Set by \`up --detach\` for the process that stays]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(down)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(status)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--json[Print JSON]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(stat)
_arguments "${_arguments_options[@]}" : \
'--watch=[Print every N seconds, with rates]::SECONDS:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--json[Print JSON (one object a line with --watch)]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(top)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--once[Print one table and exit]' \
'--json[Print JSON, one object a line]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(ss)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--json[Print JSON; times are in nanoseconds, quantities in bytes]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
'::vnic -- The VNIC whose sockets are shown \[default\: every held VNIC; root or the daemon'\''s user only\]:_default' \
&& ret=0
;;
(sockets)
_arguments "${_arguments_options[@]}" : \
'--sockets=[The service'\''s socket \[default\: as for \`sietch run\`\]]:PATH:_files' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--json[Print JSON]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(capture)
_arguments "${_arguments_options[@]}" : \
'-w+[The file to write; \`-\` is standard output]:FILE:_files' \
'--write=[The file to write; \`-\` is standard output]:FILE:_files' \
'-c+[End after this number of frames \[default\: at Ctrl-C\]]:FRAMES:_default' \
'--count=[End after this number of frames \[default\: at Ctrl-C\]]:FRAMES:_default' \
'--seconds=[End after this number of seconds \[default\: at Ctrl-C\]]:SECONDS:_default' \
'-s+[Capture at most this number of bytes of each frame \[default\: all\]]:BYTES:_default' \
'--snap=[Capture at most this number of bytes of each frame \[default\: all\]]:BYTES:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':vnic -- The VNIC whose frames are captured:_default' \
&& ret=0
;;
(vsa)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
":: :_sietch__subcmd__vsa_commands" \
"*::: :->vsa" \
&& ret=0

    case $state in
    (vsa)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:sietch-vsa-command-$line[1]:"
        case $line[1] in
            (create)
_arguments "${_arguments_options[@]}" : \
'--uid=[The user that it is for \[default\: the user who runs this command\]]:UID:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':name -- Its path\: /VOLUME/NAME, or NAME for the volume main:_default' \
':size -- Its size in bytes, or with a unit (512mb, 2gb)\: a multiple of 4096:_default' \
&& ret=0
;;
(list)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--json[Print JSON]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(usage)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--json[Print JSON]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(resize)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':name -- Its path\: /VOLUME/NAME, or NAME:_default' \
':size -- Its new size in bytes, or with a unit (512mb, 2gb)\: a multiple of 4096:_default' \
&& ret=0
;;
(trim)
_arguments "${_arguments_options[@]}" : \
'--offset=[Where the range begins, in bytes\: a multiple of 4096]:BYTES:_default' \
'--length=[How long it is\: a multiple of 4096 \[default\: to the end of the area\]]:BYTES:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':name -- Its path\: /VOLUME/NAME, or NAME:_default' \
&& ret=0
;;
(cat)
_arguments "${_arguments_options[@]}" : \
'--view=[A file of the view that the holder of the area shows, as \`keys/0/NAME\` of a store, in the place of the area'\''s own bytes]:FILE:_default' \
'--offset=[Which byte to begin with]:BYTES:_default' \
'--length=[How many bytes to write at most \[default\: to the end\]]:BYTES:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':name -- Its path\: /VOLUME/NAME, or NAME:_default' \
&& ret=0
;;
(ls)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':name -- The area'\''s path\: /VOLUME/NAME, or NAME:_default' \
'::directory -- A directory of the view \[default\: its root\]:_default' \
&& ret=0
;;
(delete)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':name -- Its path\: /VOLUME/NAME, or NAME:_default' \
&& ret=0
;;
        esac
    ;;
esac
;;
(mount)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--allow-other[Let other users in; each sees and reads its own areas alone (ordinary users need \`user_allow_other\` in /etc/fuse.conf)]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':directory -- An existing directory; what is in it is hidden meanwhile:_files' \
&& ret=0
;;
(fs)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
":: :_sietch__subcmd__fs_commands" \
"*::: :->fs" \
&& ret=0

    case $state in
    (fs)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:sietch-fs-command-$line[1]:"
        case $line[1] in
            (create)
_arguments "${_arguments_options[@]}" : \
'*--nvm=[A file in persistent memory (a file system mounted with -o dax), or on a tmpfs that stands in for it and survives no loss of power; may be repeated]:PATH=SIZE:_default' \
'*--ssd=[A file on a solid-state disk; may be repeated]:PATH=SIZE:_default' \
'*--hdd=[A file on a rotating disk; may be repeated]:PATH=SIZE:_default' \
'--hdd-model=[For measurements\: make each --hdd, which must be on a tmpfs, as slow as a disk]:MODEL:((rotating\:"7200 rotations a minute\: a random access takes 10 ms in the mean, 250 MB/s"))' \
'--log=[Bytes of the log \[default\: an eighth of the fastest medium, from 64mib to 128mib, and less where its memory is small\]]:SIZE:_default' \
'--log-memory=[The folder for the memory of the log \[default\: that of the first --nvm, else /dev/shm\]]:DIR:_files' \
'(--nvm)--durability=[Without --nvm\: when an operation survives a loss of power \[default\: fsync\]]:WHEN:((operation\:"When it returns\: each change waits for the disk"
fsync\:"When fsync returns"))' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'-V[Print version]' \
'--version[Print version]' \
':folder -- The folder of the file system; its description goes there:_files' \
&& ret=0
;;
(mount)
_arguments "${_arguments_options[@]}" : \
'--parent=[End when this process, which must be the parent, ends]:PID:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--allow-other[Let other users in, as the modes of its files permit (ordinary users need \`user_allow_other\` in /etc/fuse.conf)]' \
'--trusted[Let set-user-ID bits, file capabilities and device files take effect]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':folder -- The folder of the file system:_files' \
':directory -- An existing directory; what is in it is hidden meanwhile:_files' \
&& ret=0
;;
(serve)
_arguments "${_arguments_options[@]}" : \
'--parent=[End when this process, which must be the parent, ends]:PID:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':folder -- The folder of the file system:_files' \
&& ret=0
;;
(check)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--data[Read all data too, and compare their checksums]' \
'--json[Print JSON]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':folder -- The folder of the file system:_files' \
&& ret=0
;;
(grow)
_arguments "${_arguments_options[@]}" : \
'--medium=[The file of the medium, as \`fs.toml\` in the folder names it]:PATH:_files' \
'--size=[Bytes that it has then, in all]:SIZE:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':folder -- The folder of the file system:_files' \
&& ret=0
;;
(add)
_arguments "${_arguments_options[@]}" : \
'--nvm=[A file in persistent memory (a file system mounted with -o dax), or on a tmpfs that stands in for it and survives no loss of power]:PATH=SIZE:_default' \
'--ssd=[A file on a solid-state disk]:PATH=SIZE:_default' \
'--hdd=[A file on a rotating disk]:PATH=SIZE:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':folder -- The folder of the file system:_files' \
&& ret=0
;;
(drain)
_arguments "${_arguments_options[@]}" : \
'--medium=[The file of the medium, as \`fs.toml\` in the folder names it]:PATH:_files' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':folder -- The folder of the file system:_files' \
&& ret=0
;;
(pin)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'-V[Print version]' \
'--version[Print version]' \
':file -- A file or directory below a mount:_files' \
':class -- The class of media; none\: data move by how often they are read:((nvm\:"Persistent memory"
ssd\:"Solid-state disks"
hdd\:"Rotating disks"
none\:"Not pinned"))' \
&& ret=0
;;
(quota)
_arguments "${_arguments_options[@]}" : \
'--user=[Only this user, by name or number]:USER:_default' \
'--bytes=[Set how many bytes the user may have, as in 10gib; none\: as many as there are]:SIZE:_default' \
'--inodes=[Set how many files and directories the user may have; none\: as many as there are]:NUMBER:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'(--user --json)--recount[Count again what all users have, in the folder of a file system that nothing uses; limits stay]' \
'--json[Print JSON]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':path -- A directory below a mount; or the folder of a file system that is served, or that nothing uses:_files' \
&& ret=0
;;
        esac
    ;;
esac
;;
(run)
_arguments "${_arguments_options[@]}" : \
'--vnic=[Give the program this VNIC'\''s addresses, and reach other machines through it \[default\: the host'\''s addresses; connections to programs that are not under Sietch go through the kernel\]]:NAME:_default' \
'*--publish=[Also accept connections for the program'\''s PORT on a port of the host\: PORT (with --vnic), HOST_PORT\:PORT, or ADDRESS\:HOST_PORT\:PORT \[default address\: 127.0.0.1\]; may be given several times]:[[ADDRESS:]HOST_PORT:]PORT:_default' \
'*--fs=[Read and write the files on this mount without the kernel, where that is faster; its file system must be served (\`sietch fs serve\`). The program holds the media then, whatever owners and modes files have, until it gives up rights (setuid, chroot, ...); may be given several times]:DIR:_files' \
'--sockets=[The service'\''s socket \[default\: sockets.sock beside the daemon'\''s socket, if \`--socket\` names one; else \$SIETCH_SOCKETS; else beside the daemon'\''s\]]:PATH:_files' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--anyway[Run the program on the kernel'\''s sockets if Sietch cannot serve it, or does not run]' \
'--always[Keep short-lived connections too (by default they stay on kernel TCP, where setup is cheaper, if a program makes many of them a second)]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
'*::command -- The program and its arguments:_default' \
&& ret=0
;;
(revoke)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':name -- The VNIC or storage area, as `sietch status` shows it; for `revoke` also an application, as `sietch sockets` shows it:_default' \
&& ret=0
;;
(restore)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':name -- The VNIC or storage area, as `sietch status` shows it; for `revoke` also an application, as `sietch sockets` shows it:_default' \
&& ret=0
;;
(reload)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(doctor)
_arguments "${_arguments_options[@]}" : \
'--data=[The data directory to examine \[default\: as for \`sietch up\`\]]:DIR:_files' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--json[Print JSON]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(daemon)
_arguments "${_arguments_options[@]}" : \
'--uplink=[Physical interface that joins the VNICs to a network, by XDP redirect]:IFACE:_default' \
'--config=[The configuration\: names, users, limits \[default\: /etc/sietch/sietch.toml for root, ~/.config/sietch/sietch.toml for others; made on first start\]]:FILE:_files' \
'--data=[The folder for data, state and logs \[default\: /var/lib/sietch for root, ~/.local/share/sietch for others\]]:DIR:_files' \
'--parent=[The supervisor'\''s process\: end when it ends]:PID:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--without-network[Grant no VNICs]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(kv)
_arguments "${_arguments_options[@]}" : \
'--net=[Data path of the store]:NET:((auto\:"A VNIC if the daemon can make one, else kernel sockets"
af_xdp\:"A VNIC or nothing"
linux\:"Kernel sockets"))' \
'--durability=[When a reply to a write may leave \[default\: always\]]:DURABILITY:((always\:"After the write would survive power loss"
interval\:"At once; written within 20 ms, flushed every second"
never\:"At once; written within 20 ms, flushed only at the end"
none\:"At once; there is no log\: every key is lost when the store ends"))' \
'--port=[TCP port of the store \[default\: 6379\]]:PORT:_default' \
'--shards=[Cores that the store'\''s keys are divided among, a thread each; may change between two starts \[default\: one less than there are processors, at least 1\]]:CORES:_default' \
'--listen=[Where the store also answers on kernel sockets\: an address, an address with a port, or \`none\` \[default\: 127.0.0.1\]]:ADDRESS:_default' \
'--maxmemory=[Memory for keys and values, in bytes or with a unit (512mb, 2gb); 0 is no limit \[default\: 0\]]:BYTES:_default' \
'--maxmemory-policy=[What to do when that memory is full \[default\: noeviction\]]:POLICY:(noeviction allkeys-lru allkeys-lfu allkeys-random volatile-lru volatile-lfu volatile-random volatile-ttl)' \
'--vnic=[Name of the store'\''s VNIC \[default\: kv\]]:NAME:_default' \
'--vsa=[Name of the store'\''s storage area \[default\: kv\]]:NAME:_default' \
'--run-as=[Give up every privilege for this user and group before anything else (root only)]:UID:GID:_default' \
'--file-size-limit=[Largest file offset the process may ever write, in bytes (RLIMIT_FSIZE)]:BYTES:_default' \
'--parent=[The supervisor'\''s process\: end when it ends]:PID:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--without-io-uring[Use epoll and pwritev2 even where io_uring works]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'-V[Print version]' \
'--version[Print version]' \
":: :_sietch__subcmd__kv_commands" \
"*::: :->kv" \
&& ret=0

    case $state in
    (kv)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:sietch-kv-command-$line[1]:"
        case $line[1] in
            (check)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--json[Print JSON]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':area -- A file that holds an area, or the name of an area (/VOLUME/NAME, or NAME), which the daemon grants\: no store may hold it:_default' \
&& ret=0
;;
(backup)
_arguments "${_arguments_options[@]}" : \
'--vsa=[The store'\''s area (/VOLUME/NAME, or NAME)]:NAME:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':file -- The file to write, which is replaced once the backup is whole; `-` for standard output:_files' \
&& ret=0
;;
(restore)
_arguments "${_arguments_options[@]}" : \
'--vsa=[The store'\''s area (/VOLUME/NAME, or NAME), which is made if it is missing]:NAME:_default' \
'--config=[The configuration\: names, users, limits \[default\: /etc/sietch/sietch.toml for root, ~/.config/sietch/sietch.toml for others; made on first start\]]:FILE:_files' \
'--data=[The folder for data, state and logs \[default\: /var/lib/sietch for root, ~/.local/share/sietch for others\]]:DIR:_files' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--replace[Restore although the area has data, which are lost]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':file -- What `sietch kv backup` wrote; `-` for standard input:_files' \
&& ret=0
;;
        esac
    ;;
esac
;;
(service)
_arguments "${_arguments_options[@]}" : \
'--run-as=[Give up every privilege for this user and group before anything else (root only)]:UID:GID:_default' \
'--sockets=[The socket for programs under \`sietch run\` \[default\: sockets.sock beside the daemon'\''s socket\]]:PATH:_files' \
'*--rule=[A rule for listening and connecting under \`sietch run\`\: \`allow|deny listen|connect|all \[user UID\] \[address NETWORK\] \[port PORT|FIRST-LAST\]\`; may be given several times; the first that matches applies \[default\: allow all\]]:RULE:_default' \
'--parent=[The supervisor'\''s process\: end when it ends]:PID:_default' \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'--sockets-only[Serve programs under \`sietch run\` and nothing else; needs no daemon and no privileges. Prints the socket'\''s path once it serves]' \
'--succeed[Take over listeners and connections from the service that runs there now, which then ends; no program notices]' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
&& ret=0
;;
(completions)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':shell -- The shell:(bash elvish fish powershell zsh)' \
&& ret=0
;;
(man)
_arguments "${_arguments_options[@]}" : \
'--socket=[The daemon'\''s socket \[default\: \$SIETCH_SOCKET, else that of this user'\''s daemon if it runs, else root'\''s at /run/sietch/sietch.sock\]]:PATH:_files' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
':directory -- The folder; one page for each command:_files' \
&& ret=0
;;
        esac
    ;;
esac
}

(( $+functions[_sietch_commands] )) ||
_sietch_commands() {
    local commands; commands=(
'up:Start the daemon, the service core and the store, and stay until Ctrl-C' \
'down:Stop what \`sietch up\` started, cleanly' \
'status:Show the daemon, its grants and their holders' \
'stat:Show the counters of daemon, VNIC, TCP, log and store' \
'top:Show the programs under \`sietch run\` and their VNICs\: threads, connections, bytes a second' \
'ss:Show the sockets of all applications, as \`ss -ti\` shows the kernel'\''s' \
'sockets:Show the programs under \`sietch run\`\: their listeners, and the connections between them' \
'capture:Write the frames of a VNIC into a pcapng file, for Wireshark or tcpdump, while its holder runs' \
'vsa:Create, show, resize, trim and delete storage areas' \
'mount:Show the storage areas as files, read-only, until Ctrl-C' \
'fs:Make a file system of files on several media, and show it in a directory' \
'run:Run a program, unmodified, with Sietch'\''s TCP sockets in place of the kernel'\''s. The exit status is the program'\''s; 125 if Sietch is not ready, 126 if the program cannot be started or served, 127 if it is not there' \
'revoke:Revoke a grant while its holder runs; \`sietch restore\` allows it again. Or close the listeners and connections of an application under \`sietch run\`, named by its id in \`sietch sockets\`' \
'restore:Allow a revoked grant to be acquired again' \
'reload:Make the daemon reload sietch.toml; grants that are held stay as they are' \
'doctor:Show what this machine can do, and how to fix what is missing' \
'daemon:Run the control plane alone, for example under systemd' \
'kv:Run the Redis-compatible store alone, with a VNIC and a storage area of the daemon; or check such an area' \
'service:Run a service core\: the switch between VNICs of kind "switch", the storage broker, the sockets of programs under \`sietch run\`, the TCP of VNICs that such programs have' \
'completions:Print the completions of a shell' \
'man:Write the man pages into a folder' \
    )
    _describe -t commands 'sietch commands' commands "$@"
}
(( $+functions[_sietch__subcmd__capture_commands] )) ||
_sietch__subcmd__capture_commands() {
    local commands; commands=()
    _describe -t commands 'sietch capture commands' commands "$@"
}
(( $+functions[_sietch__subcmd__completions_commands] )) ||
_sietch__subcmd__completions_commands() {
    local commands; commands=()
    _describe -t commands 'sietch completions commands' commands "$@"
}
(( $+functions[_sietch__subcmd__daemon_commands] )) ||
_sietch__subcmd__daemon_commands() {
    local commands; commands=()
    _describe -t commands 'sietch daemon commands' commands "$@"
}
(( $+functions[_sietch__subcmd__doctor_commands] )) ||
_sietch__subcmd__doctor_commands() {
    local commands; commands=()
    _describe -t commands 'sietch doctor commands' commands "$@"
}
(( $+functions[_sietch__subcmd__down_commands] )) ||
_sietch__subcmd__down_commands() {
    local commands; commands=()
    _describe -t commands 'sietch down commands' commands "$@"
}
(( $+functions[_sietch__subcmd__fs_commands] )) ||
_sietch__subcmd__fs_commands() {
    local commands; commands=(
'create:Make a file system\: files for its media and its log, and its description \`fs.toml\`' \
'mount:Show a file system in a directory, for every program, until Ctrl-C. If \`sietch fs serve\` serves it, the mount shares it with other mounts and programs; otherwise it has it alone' \
'serve:Serve a file system to several mounts and programs of this user, until Ctrl-C' \
'check:Check a file system that is served or not open, and say what is damaged and what is lost by it; nothing is repaired or recovered. The exit status is 0 if it is whole, 1 if something is damaged, 2 if that is unknown\: a mount has it alone, or it cannot be opened' \
'grow:Make a medium larger\: its file gets more bytes. The file system must not be mounted or served' \
'add:Add a medium\: its file is made. The file system must not be mounted or served' \
'drain:Take a medium out\: its data move to the others. The file system must not be mounted or served. The first medium stays, because it has the tree' \
'pin:Say on which class of media the data of a mounted file belong, or of all files below a directory; they move there within seconds' \
'quota:Show how many bytes and inodes of a file system each user has, and set limits' \
    )
    _describe -t commands 'sietch fs commands' commands "$@"
}
(( $+functions[_sietch__subcmd__fs__subcmd__add_commands] )) ||
_sietch__subcmd__fs__subcmd__add_commands() {
    local commands; commands=()
    _describe -t commands 'sietch fs add commands' commands "$@"
}
(( $+functions[_sietch__subcmd__fs__subcmd__check_commands] )) ||
_sietch__subcmd__fs__subcmd__check_commands() {
    local commands; commands=()
    _describe -t commands 'sietch fs check commands' commands "$@"
}
(( $+functions[_sietch__subcmd__fs__subcmd__create_commands] )) ||
_sietch__subcmd__fs__subcmd__create_commands() {
    local commands; commands=()
    _describe -t commands 'sietch fs create commands' commands "$@"
}
(( $+functions[_sietch__subcmd__fs__subcmd__drain_commands] )) ||
_sietch__subcmd__fs__subcmd__drain_commands() {
    local commands; commands=()
    _describe -t commands 'sietch fs drain commands' commands "$@"
}
(( $+functions[_sietch__subcmd__fs__subcmd__grow_commands] )) ||
_sietch__subcmd__fs__subcmd__grow_commands() {
    local commands; commands=()
    _describe -t commands 'sietch fs grow commands' commands "$@"
}
(( $+functions[_sietch__subcmd__fs__subcmd__mount_commands] )) ||
_sietch__subcmd__fs__subcmd__mount_commands() {
    local commands; commands=()
    _describe -t commands 'sietch fs mount commands' commands "$@"
}
(( $+functions[_sietch__subcmd__fs__subcmd__pin_commands] )) ||
_sietch__subcmd__fs__subcmd__pin_commands() {
    local commands; commands=()
    _describe -t commands 'sietch fs pin commands' commands "$@"
}
(( $+functions[_sietch__subcmd__fs__subcmd__quota_commands] )) ||
_sietch__subcmd__fs__subcmd__quota_commands() {
    local commands; commands=()
    _describe -t commands 'sietch fs quota commands' commands "$@"
}
(( $+functions[_sietch__subcmd__fs__subcmd__serve_commands] )) ||
_sietch__subcmd__fs__subcmd__serve_commands() {
    local commands; commands=()
    _describe -t commands 'sietch fs serve commands' commands "$@"
}
(( $+functions[_sietch__subcmd__kv_commands] )) ||
_sietch__subcmd__kv_commands() {
    local commands; commands=(
'check:Read a store'\''s area and report whether the store would recover all of it; nothing is written. The exit status is 0 if it is good, 1 if it is damaged, 2 if that is unknown\: the area is held, does not exist, cannot be read, or holds something else' \
'backup:Write a backup of a store to a file or a pipe while the store runs\: its data as they are at one moment. Root or the area'\''s user may do this. It needs as much memory as the data' \
'restore:Read a backup into the area of a store that does not run. An area with data is refused, and a backup that is damaged changes nothing' \
    )
    _describe -t commands 'sietch kv commands' commands "$@"
}
(( $+functions[_sietch__subcmd__kv__subcmd__backup_commands] )) ||
_sietch__subcmd__kv__subcmd__backup_commands() {
    local commands; commands=()
    _describe -t commands 'sietch kv backup commands' commands "$@"
}
(( $+functions[_sietch__subcmd__kv__subcmd__check_commands] )) ||
_sietch__subcmd__kv__subcmd__check_commands() {
    local commands; commands=()
    _describe -t commands 'sietch kv check commands' commands "$@"
}
(( $+functions[_sietch__subcmd__kv__subcmd__restore_commands] )) ||
_sietch__subcmd__kv__subcmd__restore_commands() {
    local commands; commands=()
    _describe -t commands 'sietch kv restore commands' commands "$@"
}
(( $+functions[_sietch__subcmd__man_commands] )) ||
_sietch__subcmd__man_commands() {
    local commands; commands=()
    _describe -t commands 'sietch man commands' commands "$@"
}
(( $+functions[_sietch__subcmd__mount_commands] )) ||
_sietch__subcmd__mount_commands() {
    local commands; commands=()
    _describe -t commands 'sietch mount commands' commands "$@"
}
(( $+functions[_sietch__subcmd__reload_commands] )) ||
_sietch__subcmd__reload_commands() {
    local commands; commands=()
    _describe -t commands 'sietch reload commands' commands "$@"
}
(( $+functions[_sietch__subcmd__restore_commands] )) ||
_sietch__subcmd__restore_commands() {
    local commands; commands=()
    _describe -t commands 'sietch restore commands' commands "$@"
}
(( $+functions[_sietch__subcmd__revoke_commands] )) ||
_sietch__subcmd__revoke_commands() {
    local commands; commands=()
    _describe -t commands 'sietch revoke commands' commands "$@"
}
(( $+functions[_sietch__subcmd__run_commands] )) ||
_sietch__subcmd__run_commands() {
    local commands; commands=()
    _describe -t commands 'sietch run commands' commands "$@"
}
(( $+functions[_sietch__subcmd__service_commands] )) ||
_sietch__subcmd__service_commands() {
    local commands; commands=()
    _describe -t commands 'sietch service commands' commands "$@"
}
(( $+functions[_sietch__subcmd__sockets_commands] )) ||
_sietch__subcmd__sockets_commands() {
    local commands; commands=()
    _describe -t commands 'sietch sockets commands' commands "$@"
}
(( $+functions[_sietch__subcmd__ss_commands] )) ||
_sietch__subcmd__ss_commands() {
    local commands; commands=()
    _describe -t commands 'sietch ss commands' commands "$@"
}
(( $+functions[_sietch__subcmd__stat_commands] )) ||
_sietch__subcmd__stat_commands() {
    local commands; commands=()
    _describe -t commands 'sietch stat commands' commands "$@"
}
(( $+functions[_sietch__subcmd__status_commands] )) ||
_sietch__subcmd__status_commands() {
    local commands; commands=()
    _describe -t commands 'sietch status commands' commands "$@"
}
(( $+functions[_sietch__subcmd__top_commands] )) ||
_sietch__subcmd__top_commands() {
    local commands; commands=()
    _describe -t commands 'sietch top commands' commands "$@"
}
(( $+functions[_sietch__subcmd__up_commands] )) ||
_sietch__subcmd__up_commands() {
    local commands; commands=()
    _describe -t commands 'sietch up commands' commands "$@"
}
(( $+functions[_sietch__subcmd__vsa_commands] )) ||
_sietch__subcmd__vsa_commands() {
    local commands; commands=(
'create:Make an area, its blocks zeroed' \
'list:Show the areas\: all of them to root, their own to other users' \
'usage:Show the volumes\: what they are, what is free, and the quotas' \
'resize:Make an area longer or shorter; what is held grows under its holder' \
'trim:Make a range of an area read as zeros; its blocks stay its own, \`resize\` gives them back' \
'cat:Write the bytes of an area to standard output, even while it is held, or a file of the view that its holder shows' \
'ls:List what the holder of an area shows of it' \
'delete:Delete an area that is not held, and its data' \
    )
    _describe -t commands 'sietch vsa commands' commands "$@"
}
(( $+functions[_sietch__subcmd__vsa__subcmd__cat_commands] )) ||
_sietch__subcmd__vsa__subcmd__cat_commands() {
    local commands; commands=()
    _describe -t commands 'sietch vsa cat commands' commands "$@"
}
(( $+functions[_sietch__subcmd__vsa__subcmd__create_commands] )) ||
_sietch__subcmd__vsa__subcmd__create_commands() {
    local commands; commands=()
    _describe -t commands 'sietch vsa create commands' commands "$@"
}
(( $+functions[_sietch__subcmd__vsa__subcmd__delete_commands] )) ||
_sietch__subcmd__vsa__subcmd__delete_commands() {
    local commands; commands=()
    _describe -t commands 'sietch vsa delete commands' commands "$@"
}
(( $+functions[_sietch__subcmd__vsa__subcmd__list_commands] )) ||
_sietch__subcmd__vsa__subcmd__list_commands() {
    local commands; commands=()
    _describe -t commands 'sietch vsa list commands' commands "$@"
}
(( $+functions[_sietch__subcmd__vsa__subcmd__ls_commands] )) ||
_sietch__subcmd__vsa__subcmd__ls_commands() {
    local commands; commands=()
    _describe -t commands 'sietch vsa ls commands' commands "$@"
}
(( $+functions[_sietch__subcmd__vsa__subcmd__resize_commands] )) ||
_sietch__subcmd__vsa__subcmd__resize_commands() {
    local commands; commands=()
    _describe -t commands 'sietch vsa resize commands' commands "$@"
}
(( $+functions[_sietch__subcmd__vsa__subcmd__trim_commands] )) ||
_sietch__subcmd__vsa__subcmd__trim_commands() {
    local commands; commands=()
    _describe -t commands 'sietch vsa trim commands' commands "$@"
}
(( $+functions[_sietch__subcmd__vsa__subcmd__usage_commands] )) ||
_sietch__subcmd__vsa__subcmd__usage_commands() {
    local commands; commands=()
    _describe -t commands 'sietch vsa usage commands' commands "$@"
}

if [ "$funcstack[1]" = "_sietch" ]; then
    _sietch "$@"
else
    compdef _sietch sietch
fi

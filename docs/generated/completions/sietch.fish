# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_sietch_global_optspecs
    string join \n socket= h/help V/version
end

function __fish_sietch_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_sietch_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_sietch_using_subcommand
    set -l cmd (__fish_sietch_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c sietch -n "__fish_sietch_needs_command" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_needs_command" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_needs_command" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "up" -d 'Start the daemon, the service core and the store, and stay until Ctrl-C'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "down" -d 'Stop what `sietch up` started, cleanly'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "status" -d 'Show the daemon, its grants and their holders'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "stat" -d 'Show the counters of daemon, VNIC, TCP, log and store'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "top" -d 'Show the programs under `sietch run` and their VNICs: threads, connections, bytes a second'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "ss" -d 'Show the sockets of all applications, as `ss -ti` shows the kernel\'s'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "sockets" -d 'Show the programs under `sietch run`: their listeners, and the connections between them'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "capture" -d 'Write the frames of a VNIC into a pcapng file, for Wireshark or tcpdump, while its holder runs'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "vsa" -d 'Create, show, resize, trim and delete storage areas'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "mount" -d 'Show the storage areas as files, read-only, until Ctrl-C'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "fs" -d 'Make a file system of files on several media, and show it in a directory'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "run" -d 'Run a program, unmodified, with Sietch\'s TCP sockets in place of the kernel\'s. The exit status is the program\'s; 125 if Sietch is not ready, 126 if the program cannot be started or served, 127 if it is not there'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "revoke" -d 'Revoke a grant while its holder runs; `sietch restore` allows it again. Or close the listeners and connections of an application under `sietch run`, named by its id in `sietch sockets`'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "restore" -d 'Allow a revoked grant to be acquired again'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "reload" -d 'Make the daemon reload sietch.toml; grants that are held stay as they are'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "doctor" -d 'Show what this machine can do, and how to fix what is missing'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "daemon" -d 'Run the control plane alone, for example under systemd'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "kv" -d 'Run the Redis-compatible store alone, with a VNIC and a storage area of the daemon; or check such an area'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "service" -d 'Run a service core: the switch between VNICs of kind "switch", the storage broker, the sockets of programs under `sietch run`, the TCP of VNICs that such programs have'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "completions" -d 'Print the completions of a shell'
complete -c sietch -n "__fish_sietch_needs_command" -f -a "man" -d 'Write the man pages into a folder'
complete -c sietch -n "__fish_sietch_using_subcommand up" -l net -d 'Data path of the store' -r -f -a "auto\t'A VNIC if the daemon can make one, else kernel sockets'
af_xdp\t'A VNIC or nothing'
linux\t'Kernel sockets'"
complete -c sietch -n "__fish_sietch_using_subcommand up" -l durability -d 'When a reply to a write may leave [default: always]' -r -f -a "always\t'After the write would survive power loss'
interval\t'At once; written within 20 ms, flushed every second'
never\t'At once; written within 20 ms, flushed only at the end'
none\t'At once; there is no log: every key is lost when the store ends'"
complete -c sietch -n "__fish_sietch_using_subcommand up" -l port -d 'TCP port of the store [default: 6379]' -r
complete -c sietch -n "__fish_sietch_using_subcommand up" -l shards -d 'Cores that the store\'s keys are divided among, a thread each; may change between two starts [default: one less than there are processors, at least 1]' -r
complete -c sietch -n "__fish_sietch_using_subcommand up" -l listen -d 'Where the store also answers on kernel sockets: an address, an address with a port, or `none` [default: 127.0.0.1]' -r
complete -c sietch -n "__fish_sietch_using_subcommand up" -l maxmemory -d 'Memory for keys and values, in bytes or with a unit (512mb, 2gb); 0 is no limit [default: 0]' -r
complete -c sietch -n "__fish_sietch_using_subcommand up" -l maxmemory-policy -d 'What to do when that memory is full [default: noeviction]' -r -f -a "noeviction\t''
allkeys-lru\t''
allkeys-lfu\t''
allkeys-random\t''
volatile-lru\t''
volatile-lfu\t''
volatile-random\t''
volatile-ttl\t''"
complete -c sietch -n "__fish_sietch_using_subcommand up" -l vnic -d 'Name of the store\'s VNIC [default: kv]' -r
complete -c sietch -n "__fish_sietch_using_subcommand up" -l vsa -d 'Name of the store\'s storage area [default: kv]' -r
complete -c sietch -n "__fish_sietch_using_subcommand up" -l uplink -d 'Physical interface that joins the VNICs to a network, by XDP redirect' -r
complete -c sietch -n "__fish_sietch_using_subcommand up" -l config -d 'The configuration: names, users, limits [default: /etc/sietch/sietch.toml for root, ~/.config/sietch/sietch.toml for others; made on first start]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand up" -l data -d 'The folder for data, state and logs [default: /var/lib/sietch for root, ~/.local/share/sietch for others]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand up" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand up" -l without-io-uring -d 'Use epoll and pwritev2 even where io_uring works'
complete -c sietch -n "__fish_sietch_using_subcommand up" -l foreground -d 'Stay in the foreground until Ctrl-C (the default)'
complete -c sietch -n "__fish_sietch_using_subcommand up" -l detach -d 'Return once the store is ready; `sietch down` stops it'
complete -c sietch -n "__fish_sietch_using_subcommand up" -l detached -d 'Set by `up --detach` for the process that stays'
complete -c sietch -n "__fish_sietch_using_subcommand up" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c sietch -n "__fish_sietch_using_subcommand up" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand down" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand down" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand down" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand status" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand status" -l json -d 'Print JSON'
complete -c sietch -n "__fish_sietch_using_subcommand status" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand status" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand stat" -l watch -d 'Print every N seconds, with rates' -r
complete -c sietch -n "__fish_sietch_using_subcommand stat" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand stat" -l json -d 'Print JSON (one object a line with --watch)'
complete -c sietch -n "__fish_sietch_using_subcommand stat" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand stat" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand top" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand top" -l once -d 'Print one table and exit'
complete -c sietch -n "__fish_sietch_using_subcommand top" -l json -d 'Print JSON, one object a line'
complete -c sietch -n "__fish_sietch_using_subcommand top" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand top" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand ss" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand ss" -l json -d 'Print JSON; times are in nanoseconds, quantities in bytes'
complete -c sietch -n "__fish_sietch_using_subcommand ss" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand ss" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand sockets" -l sockets -d 'The service\'s socket [default: as for `sietch run`]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand sockets" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand sockets" -l json -d 'Print JSON'
complete -c sietch -n "__fish_sietch_using_subcommand sockets" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand sockets" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand capture" -s w -l write -d 'The file to write; `-` is standard output' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand capture" -s c -l count -d 'End after this number of frames [default: at Ctrl-C]' -r
complete -c sietch -n "__fish_sietch_using_subcommand capture" -l seconds -d 'End after this number of seconds [default: at Ctrl-C]' -r
complete -c sietch -n "__fish_sietch_using_subcommand capture" -s s -l snap -d 'Capture at most this number of bytes of each frame [default: all]' -r
complete -c sietch -n "__fish_sietch_using_subcommand capture" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand capture" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand capture" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and not __fish_seen_subcommand_from create list usage resize trim cat ls delete" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and not __fish_seen_subcommand_from create list usage resize trim cat ls delete" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and not __fish_seen_subcommand_from create list usage resize trim cat ls delete" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and not __fish_seen_subcommand_from create list usage resize trim cat ls delete" -f -a "create" -d 'Make an area, its blocks zeroed'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and not __fish_seen_subcommand_from create list usage resize trim cat ls delete" -f -a "list" -d 'Show the areas: all of them to root, their own to other users'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and not __fish_seen_subcommand_from create list usage resize trim cat ls delete" -f -a "usage" -d 'Show the volumes: what they are, what is free, and the quotas'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and not __fish_seen_subcommand_from create list usage resize trim cat ls delete" -f -a "resize" -d 'Make an area longer or shorter; what is held grows under its holder'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and not __fish_seen_subcommand_from create list usage resize trim cat ls delete" -f -a "trim" -d 'Make a range of an area read as zeros; its blocks stay its own, `resize` gives them back'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and not __fish_seen_subcommand_from create list usage resize trim cat ls delete" -f -a "cat" -d 'Write the bytes of an area to standard output, even while it is held, or a file of the view that its holder shows'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and not __fish_seen_subcommand_from create list usage resize trim cat ls delete" -f -a "ls" -d 'List what the holder of an area shows of it'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and not __fish_seen_subcommand_from create list usage resize trim cat ls delete" -f -a "delete" -d 'Delete an area that is not held, and its data'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from create" -l uid -d 'The user that it is for [default: the user who runs this command]' -r
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from create" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from create" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from list" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from list" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from usage" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from usage" -l json -d 'Print JSON'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from usage" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from usage" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from resize" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from resize" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from resize" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from trim" -l offset -d 'Where the range begins, in bytes: a multiple of 4096' -r
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from trim" -l length -d 'How long it is: a multiple of 4096 [default: to the end of the area]' -r
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from trim" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from trim" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from trim" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from cat" -l view -d 'A file of the view that the holder of the area shows, as `keys/0/NAME` of a store, in the place of the area\'s own bytes' -r
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from cat" -l offset -d 'Which byte to begin with' -r
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from cat" -l length -d 'How many bytes to write at most [default: to the end]' -r
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from cat" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from cat" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from cat" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from ls" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from ls" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from ls" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from delete" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from delete" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand vsa; and __fish_seen_subcommand_from delete" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand mount" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand mount" -l allow-other -d 'Let other users in; each sees and reads its own areas alone (ordinary users need `user_allow_other` in /etc/fuse.conf)'
complete -c sietch -n "__fish_sietch_using_subcommand mount" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand mount" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -f -a "create" -d 'Make a file system: files for its media and its log, and its description `fs.toml`'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -f -a "mount" -d 'Show a file system in a directory, for every program, until Ctrl-C. If `sietch fs serve` serves it, the mount shares it with other mounts and programs; otherwise it has it alone'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -f -a "serve" -d 'Serve a file system to several mounts and programs of this user, until Ctrl-C'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -f -a "check" -d 'Check a file system that is served or not open, and say what is damaged and what is lost by it; nothing is repaired or recovered. The exit status is 0 if it is whole, 1 if something is damaged, 2 if that is unknown: a mount has it alone, or it cannot be opened'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -f -a "grow" -d 'Make a medium larger: its file gets more bytes. The file system must not be mounted or served'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -f -a "add" -d 'Add a medium: its file is made. The file system must not be mounted or served'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -f -a "drain" -d 'Take a medium out: its data move to the others. The file system must not be mounted or served. The first medium stays, because it has the tree'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -f -a "pin" -d 'Say on which class of media the data of a mounted file belong, or of all files below a directory; they move there within seconds'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and not __fish_seen_subcommand_from create mount serve check grow add drain pin quota" -f -a "quota" -d 'Show how many bytes and inodes of a file system each user has, and set limits'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from create" -l nvm -d 'A file in persistent memory (a file system mounted with -o dax), or on a tmpfs that stands in for it and survives no loss of power; may be repeated' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from create" -l ssd -d 'A file on a solid-state disk; may be repeated' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from create" -l hdd -d 'A file on a rotating disk; may be repeated' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from create" -l hdd-model -d 'For measurements: make each --hdd, which must be on a tmpfs, as slow as a disk' -r -f -a "rotating\t'7200 rotations a minute: a random access takes 10 ms in the mean, 250 MB/s'"
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from create" -l log -d 'Bytes of the log [default: an eighth of the fastest medium, from 64mib to 128mib, and less where its memory is small]' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from create" -l log-memory -d 'The folder for the memory of the log [default: that of the first --nvm, else /dev/shm]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from create" -l durability -d 'Without --nvm: when an operation survives a loss of power [default: fsync]' -r -f -a "operation\t'When it returns: each change waits for the disk'
fsync\t'When fsync returns'"
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from create" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from create" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from mount" -l parent -d 'End when this process, which must be the parent, ends' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from mount" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from mount" -l allow-other -d 'Let other users in, as the modes of its files permit (ordinary users need `user_allow_other` in /etc/fuse.conf)'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from mount" -l trusted -d 'Let set-user-ID bits, file capabilities and device files take effect'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from mount" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from mount" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from serve" -l parent -d 'End when this process, which must be the parent, ends' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from serve" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from serve" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from serve" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from check" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from check" -l data -d 'Read all data too, and compare their checksums'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from check" -l json -d 'Print JSON'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from check" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from grow" -l medium -d 'The file of the medium, as `fs.toml` in the folder names it' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from grow" -l size -d 'Bytes that it has then, in all' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from grow" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from grow" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from grow" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from add" -l nvm -d 'A file in persistent memory (a file system mounted with -o dax), or on a tmpfs that stands in for it and survives no loss of power' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from add" -l ssd -d 'A file on a solid-state disk' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from add" -l hdd -d 'A file on a rotating disk' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from add" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from add" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from add" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from drain" -l medium -d 'The file of the medium, as `fs.toml` in the folder names it' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from drain" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from drain" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from drain" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from pin" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from pin" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from pin" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from quota" -l user -d 'Only this user, by name or number' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from quota" -l bytes -d 'Set how many bytes the user may have, as in 10gib; none: as many as there are' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from quota" -l inodes -d 'Set how many files and directories the user may have; none: as many as there are' -r
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from quota" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from quota" -l recount -d 'Count again what all users have, in the folder of a file system that nothing uses; limits stay'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from quota" -l json -d 'Print JSON'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from quota" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand fs; and __fish_seen_subcommand_from quota" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand run" -l vnic -d 'Give the program this VNIC\'s addresses, and reach other machines through it [default: the host\'s addresses; connections to programs that are not under Sietch go through the kernel]' -r
complete -c sietch -n "__fish_sietch_using_subcommand run" -l publish -d 'Also accept connections for the program\'s PORT on a port of the host: PORT (with --vnic), HOST_PORT:PORT, or ADDRESS:HOST_PORT:PORT [default address: 127.0.0.1]; may be given several times' -r
complete -c sietch -n "__fish_sietch_using_subcommand run" -l fs -d 'Read and write the files on this mount without the kernel, where that is faster; its file system must be served (`sietch fs serve`). The program holds the media then, whatever owners and modes files have, until it gives up rights (setuid, chroot, ...); may be given several times' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand run" -l sockets -d 'The service\'s socket [default: sockets.sock beside the daemon\'s socket, if `--socket` names one; else $SIETCH_SOCKETS; else beside the daemon\'s]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand run" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand run" -l anyway -d 'Run the program on the kernel\'s sockets if Sietch cannot serve it, or does not run'
complete -c sietch -n "__fish_sietch_using_subcommand run" -l always -d 'Keep short-lived connections too (by default they stay on kernel TCP, where setup is cheaper, if a program makes many of them a second)'
complete -c sietch -n "__fish_sietch_using_subcommand run" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand run" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand revoke" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand revoke" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand revoke" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand restore" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand restore" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand restore" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand reload" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand reload" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand reload" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand doctor" -l data -d 'The data directory to examine [default: as for `sietch up`]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand doctor" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand doctor" -l json -d 'Print JSON'
complete -c sietch -n "__fish_sietch_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand doctor" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand daemon" -l uplink -d 'Physical interface that joins the VNICs to a network, by XDP redirect' -r
complete -c sietch -n "__fish_sietch_using_subcommand daemon" -l config -d 'The configuration: names, users, limits [default: /etc/sietch/sietch.toml for root, ~/.config/sietch/sietch.toml for others; made on first start]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand daemon" -l data -d 'The folder for data, state and logs [default: /var/lib/sietch for root, ~/.local/share/sietch for others]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand daemon" -l parent -d 'The supervisor\'s process: end when it ends' -r
complete -c sietch -n "__fish_sietch_using_subcommand daemon" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand daemon" -l without-network -d 'Grant no VNICs'
complete -c sietch -n "__fish_sietch_using_subcommand daemon" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand daemon" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l net -d 'Data path of the store' -r -f -a "auto\t'A VNIC if the daemon can make one, else kernel sockets'
af_xdp\t'A VNIC or nothing'
linux\t'Kernel sockets'"
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l durability -d 'When a reply to a write may leave [default: always]' -r -f -a "always\t'After the write would survive power loss'
interval\t'At once; written within 20 ms, flushed every second'
never\t'At once; written within 20 ms, flushed only at the end'
none\t'At once; there is no log: every key is lost when the store ends'"
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l port -d 'TCP port of the store [default: 6379]' -r
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l shards -d 'Cores that the store\'s keys are divided among, a thread each; may change between two starts [default: one less than there are processors, at least 1]' -r
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l listen -d 'Where the store also answers on kernel sockets: an address, an address with a port, or `none` [default: 127.0.0.1]' -r
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l maxmemory -d 'Memory for keys and values, in bytes or with a unit (512mb, 2gb); 0 is no limit [default: 0]' -r
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l maxmemory-policy -d 'What to do when that memory is full [default: noeviction]' -r -f -a "noeviction\t''
allkeys-lru\t''
allkeys-lfu\t''
allkeys-random\t''
volatile-lru\t''
volatile-lfu\t''
volatile-random\t''
volatile-ttl\t''"
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l vnic -d 'Name of the store\'s VNIC [default: kv]' -r
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l vsa -d 'Name of the store\'s storage area [default: kv]' -r
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l run-as -d 'Give up every privilege for this user and group before anything else (root only)' -r
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l file-size-limit -d 'Largest file offset the process may ever write, in bytes (RLIMIT_FSIZE)' -r
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l parent -d 'The supervisor\'s process: end when it ends' -r
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -l without-io-uring -d 'Use epoll and pwritev2 even where io_uring works'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -f -a "check" -d 'Read a store\'s area and report whether the store would recover all of it; nothing is written. The exit status is 0 if it is good, 1 if it is damaged, 2 if that is unknown: the area is held, does not exist, cannot be read, or holds something else'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -f -a "backup" -d 'Write a backup of a store to a file or a pipe while the store runs: its data as they are at one moment. Root or the area\'s user may do this. It needs as much memory as the data'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and not __fish_seen_subcommand_from check backup restore" -f -a "restore" -d 'Read a backup into the area of a store that does not run. An area with data is refused, and a backup that is damaged changes nothing'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from check" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from check" -l json -d 'Print JSON'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from check" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from backup" -l vsa -d 'The store\'s area (/VOLUME/NAME, or NAME)' -r
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from backup" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from backup" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from backup" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from restore" -l vsa -d 'The store\'s area (/VOLUME/NAME, or NAME), which is made if it is missing' -r
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from restore" -l config -d 'The configuration: names, users, limits [default: /etc/sietch/sietch.toml for root, ~/.config/sietch/sietch.toml for others; made on first start]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from restore" -l data -d 'The folder for data, state and logs [default: /var/lib/sietch for root, ~/.local/share/sietch for others]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from restore" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from restore" -l replace -d 'Restore although the area has data, which are lost'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from restore" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand kv; and __fish_seen_subcommand_from restore" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand service" -l run-as -d 'Give up every privilege for this user and group before anything else (root only)' -r
complete -c sietch -n "__fish_sietch_using_subcommand service" -l sockets -d 'The socket for programs under `sietch run` [default: sockets.sock beside the daemon\'s socket]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand service" -l rule -d 'A rule for listening and connecting under `sietch run`: `allow|deny listen|connect|all [user UID] [address NETWORK] [port PORT|FIRST-LAST]`; may be given several times; the first that matches applies [default: allow all]' -r
complete -c sietch -n "__fish_sietch_using_subcommand service" -l parent -d 'The supervisor\'s process: end when it ends' -r
complete -c sietch -n "__fish_sietch_using_subcommand service" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand service" -l sockets-only -d 'Serve programs under `sietch run` and nothing else; needs no daemon and no privileges. Prints the socket\'s path once it serves'
complete -c sietch -n "__fish_sietch_using_subcommand service" -l succeed -d 'Take over listeners and connections from the service that runs there now, which then ends; no program notices'
complete -c sietch -n "__fish_sietch_using_subcommand service" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand service" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand completions" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand completions" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand completions" -s V -l version -d 'Print version'
complete -c sietch -n "__fish_sietch_using_subcommand man" -l socket -d 'The daemon\'s socket [default: $SIETCH_SOCKET, else that of this user\'s daemon if it runs, else root\'s at /run/sietch/sietch.sock]' -r -F
complete -c sietch -n "__fish_sietch_using_subcommand man" -s h -l help -d 'Print help'
complete -c sietch -n "__fish_sietch_using_subcommand man" -s V -l version -d 'Print version'

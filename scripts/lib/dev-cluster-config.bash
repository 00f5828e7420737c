# shellcheck shell=bash disable=SC2154 # sourced by scripts/dev-cluster, which sets the variables
# The text of a development cluster's configuration files. These functions print; they write nothing
# and start nothing. They read $dir, $release, $port_base, $nodes, $features, $slurm_user, $slurmd_user,
# $loopback_only.

# Several of these keys may stand in slurm.conf, told apart by their value.
readonly REPEATABLE_KEYS='nodename|partitionname|nodeset|downnodes'

slurm_conf() { # extra lines...
    local host
    host=$(uname -n)
    host=${host%%.*}
    override_lines "$@" <<EOT
ClusterName=bftrainer-dev
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(slurmctld_port "$port_base")
SlurmUser=$slurm_user
SlurmdUser=$slurmd_user
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/munge/munge.socket
${loopback_only:+CommunicationParameters=NoCtldInAddrAny,NoInAddrAny}
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
PlugStackConfig=$dir/plugstack.conf
MailProg=/bin/true
# Many slurmd on one host: no cgroups, no binding, and CPUs as written here.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
MpiDefault=none
# Scheduling.
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,batch_sched_delay=0,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PrologFlags=Alloc
JobRequeue=1
KillWait=5
MinJobAge=300
MaxArraySize=1001
InactiveLimit=0
MessageTimeout=10
SlurmdTimeout=30
ReturnToService=2
$(node_lines "$host")
PartitionName=batch Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF MaxTime=UNLIMITED State=UP
PartitionName=bftrainer Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 OverSubscribe=NO MaxTime=UNLIMITED DefaultTime=30 State=UP
EOT
}

# One for all nodes when they are alike.
node_lines() { # HOST
    local rest="NodeHostname=$1 NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000"
    local -a words
    local i
    read -ra words <<<"$features"
    if ((${#words[@]} == 0)); then
        printf 'NodeName=n[1-%d] %s Port=[%s]\n' "$nodes" "$rest" "$(slurmd_ports "$port_base" "$nodes")"
        return
    fi
    for ((i = 1; i <= nodes; i++)); do
        printf 'NodeName=n%d %s Port=%s Features=%s\n' "$i" "$rest" "$((port_base + 1 + i))" "${words[(i - 1) % ${#words[@]}]}"
    done
}

# Slurm before 23.02 does not know the word "disabled" and does not need the file.
cgroup_conf() { # Slurm version, such as 22.05.8
    local major minor
    IFS=. read -r major minor _ <<<"$1"
    if ((major > 23 || (major == 23 && 10#$minor >= 2))); then
        printf 'CgroupPlugin=disabled\n'
    fi
}

plugstack_conf() { printf 'include %s/plugstack.conf.d/*.conf\n' "$dir"; }

plugin_conf() { # plugin's path
    printf 'optional %s controller=127.0.0.1:%d partition=bftrainer agent=%s\n' \
        "$1" "$(bftrainerd_port "$port_base")" "$release/bftrainer"
}

bftrainer_toml() { # extra lines...
    override_lines "$@" <<EOT
controller = "127.0.0.1:$(bftrainerd_port "$port_base")"
partition = "bftrainer"
state_dir = "$dir/state-bftrainer"
munge_socket = "$dir/munge/munge.socket"
EOT
}

# Standard input with the arguments' lines in place of those that have the same key, or after them.
override_lines() {
    local -A extra=()
    local -a order=()
    local line key
    for line in "$@"; do
        key=$(line_key "$line")
        [[ -n ${extra[$key]+set} ]] || order+=("$key")
        extra[$key]=$line
    done
    while IFS= read -r line; do
        [[ -n $line && -z ${extra[$(line_key "$line")]+set} ]] || continue
        printf '%s\n' "$line"
    done
    for key in "${order[@]}"; do
        printf '%s\n' "${extra[$key]}"
    done
}

line_key() { # LINE
    local line=${1,,} key value
    key=${line%%=*}
    key=${key//[[:space:]]/}
    if [[ $key =~ ^($REPEATABLE_KEYS)$ ]]; then
        read -r value _ <<<"${line#*=}"
        key+=$value
    fi
    printf '%s' "${key:-empty}"
}

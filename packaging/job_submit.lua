--[[ Tags jobs on the server, for sites whose sbatch has no BFTrainer plugin: include this in the
site's job_submit.lua (JobSubmitPlugins=lua).

    sbatch --array=0-15 -N1 --exclusive -p bftrainer --comment=bftrainer:nodes=1-16 train.sh

Users write the array, the partition and the comment; what is easily forgotten is done here: such a
job is held until bftrainerd has admitted it, may be requeued, and has its nodes for itself. Other
jobs are not touched. The array itself can't be made here: a job's shape is fixed before this runs.
]]

local PARTITION = "bftrainer"
local PREFIX = "bftrainer:"

local function is_trainer(job_desc)
    local comment = job_desc.comment
    return job_desc.partition == PARTITION
        and comment ~= nil
        and string.sub(comment, 1, #PREFIX) == PREFIX
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    if not is_trainer(job_desc) then
        return slurm.SUCCESS
    end
    if job_desc.array_inx == nil then
        slurm.log_user("bftrainer: a trainer is an array of one-node tasks: add --array=0-15 for at most 16 nodes")
        return slurm.ERROR
    end
    job_desc.priority = 0
    job_desc.requeue = 1
    job_desc.shared = 0
    job_desc.min_nodes = 1
    job_desc.max_nodes = 1
    return slurm.SUCCESS
end

-- A trainer's comment is read once, at its admission; changing it later changes nothing.
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS

//! The real binary as a task of a trainer, in a submit directory of its own.

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;

use super::munged::Munged;
use super::{own_uid, until};

/// The trainer's number in all tests.
pub const TRAINER: u32 = 40;

/// In the environment of every process of a task, so that each can be found
/// wherever it hides.
const MARK: &str = "BFT_TEST_TASK";

/// What a task is started with.
pub struct Setup {
    submit_dir: PathBuf,
    /// Its environment.
    pub variables: HashMap<String, String>,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// A trainer's submit directory.
pub struct SubmitDir(TempDir);

impl SubmitDir {
    pub fn new() -> Self {
        SubmitDir(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A file in the control folder.
    pub fn control(&self, name: &str) -> PathBuf {
        self.path().join(format!(".bftrainer-{TRAINER}")).join(name)
    }

    /// Makes the control folder as trainer of `submit_time_s` would have left it.
    pub fn make_control(&self, submit_time_s: i64, generation: u64) {
        std::fs::create_dir(self.control("")).unwrap();
        let trainer = format!("submit_time={submit_time_s}\n");
        std::fs::write(self.control("trainer"), trainer).unwrap();
        std::fs::write(self.control("generation"), format!("{generation}\n")).unwrap();
    }

    /// What a file in the submit directory holds, whole lines only.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path().join(name)).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(str::to_owned).collect()
    }

    /// Waits until a file has a line.
    pub async fn line(&self, name: &str) -> String {
        until(&format!("{name} is written"), || {
            self.lines(name).into_iter().next()
        })
        .await
    }

    /// The setup of a task that runs the shell script `script` under the agent.
    pub fn task(&self, munged: &Munged, controller: &str, script: &str) -> Setup {
        self.setup(munged, controller, ["run", "--", "sh", "-c", script])
    }

    pub fn setup<const N: usize>(
        &self,
        munged: &Munged,
        controller: &str,
        arguments: [&str; N],
    ) -> Setup {
        let text = |path: &Path| path.display().to_string();
        let mark = format!("{}", self.path().display());
        let variables = [
            ("PATH", std::env::var("PATH").unwrap()),
            ("SLURM_ARRAY_JOB_ID", TRAINER.to_string()),
            ("SLURM_ARRAY_TASK_ID", "1".into()),
            ("SLURM_JOB_ID", "41".into()),
            ("SLURM_RESTART_COUNT", "2".into()),
            ("SLURMD_NODENAME", "n1".into()),
            ("SLURM_SUBMIT_DIR", text(self.path())),
            // Killed agents leave their folders there.
            ("TMPDIR", text(self.path())),
            // No Slurm here: a call fails at once.
            ("SLURM_CONF", "/dev/null".into()),
            ("BFT_CONTROLLER", controller.into()),
            ("BFT_CONTROLLER_UID", own_uid().to_string()),
            ("BFT_MUNGE_SOCKET", text(&munged.socket())),
            (MARK, mark),
        ];
        Setup {
            submit_dir: self.path().to_owned(),
            variables: variables
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            arguments: arguments.map(str::to_owned).into(),
        }
    }
}

impl Setup {
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Starts it; its output goes to the files `out` and `err`.
    pub fn run(&self) -> Task {
        let file = |name: &str| {
            let path = self.submit_dir.join(name);
            let file = std::fs::File::options()
                .append(true)
                .create(true)
                .open(path);
            Stdio::from(file.unwrap())
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_bftrainer"));
        command
            .args(&self.arguments)
            .env_clear()
            .envs(&self.variables)
            .current_dir(&self.submit_dir)
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .process_group(0);
        // SAFETY: prctl is a system call and safe after fork.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        Task {
            keeper: command.spawn().unwrap(),
            mark: format!("{MARK}={}", self.variables[MARK]),
        }
    }
}

/// A running task.
pub struct Task {
    keeper: Child,
    mark: String,
}

impl Task {
    /// The process that Slurm would have started.
    pub fn keeper(&self) -> i32 {
        self.keeper.id() as i32
    }

    /// The keeper's child.
    pub async fn agent(&self) -> i32 {
        let keeper = self.keeper();
        let path = format!("/proc/{keeper}/task/{keeper}/children");
        until("the agent runs", || {
            let children = std::fs::read_to_string(&path).ok()?;
            children.split_whitespace().next()?.parse().ok()
        })
        .await
    }

    pub fn signal(&self, signal: i32) {
        send(self.keeper(), signal);
    }

    /// How it ends.
    pub async fn end(&mut self) -> ExitStatus {
        until("the task ends", || self.keeper.try_wait().unwrap()).await
    }

    /// Its exit code.
    pub async fn exit_code(&mut self) -> Option<i32> {
        self.end().await.code()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.keeper.try_wait().unwrap().is_none()
    }

    /// All its processes, wherever they hid; zombies left out.
    pub fn processes(&self) -> Vec<i32> {
        let is_ours = |pid: &i32| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environ.split(|byte| *byte == 0);
            variables.any(|variable| variable == self.mark.as_bytes())
        };
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(is_ours).collect()
    }

    /// Waits until none of its processes is left.
    pub async fn is_gone(&self) {
        until("no process is left", || {
            self.processes().is_empty().then_some(())
        })
        .await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        for pid in self.processes() {
            send(pid, libc::SIGKILL);
        }
        let _ = self.keeper.wait();
    }
}

pub fn send(pid: i32, signal: i32) {
    assert!(pid > 1);
    // SAFETY: takes integers only.
    unsafe { libc::kill(pid, signal) };
}

/// Whether the process lives.
pub fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.trim().starts_with('Z'))
}

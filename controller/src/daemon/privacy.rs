//! slurm.conf's PrivateData: with `jobs` users see their own trainers alone,
//! with `usage` their own node-hours. Administrators see all.

use bftrainer::wire::Answer;
use serde_json::Value;

use super::brain::Brain;

impl Brain {
    /// What `uid` may see of `answer`.
    pub(super) fn visible(&self, uid: u32, answer: Answer) -> Answer {
        if !self.settings.private_jobs || self.is_administrator(uid) {
            return answer;
        }
        match answer {
            Answer::Rows { mut rows } => {
                rows.retain_mut(|row| self.show_row_to(uid, row));
                Answer::Rows { rows }
            }
            failed => failed,
        }
    }

    /// False when the row is another user's; a node's row only loses whose it is.
    fn show_row_to(&self, uid: u32, row: &mut Value) -> bool {
        let Some(id) = row["jobid"].as_u64() else {
            return true;
        };
        let owner = self.arrays.get(&(id as u32)).map(|array| array.owner_uid);
        let is_own = match owner {
            Some(owner) => owner == uid,
            // Ended: the row has been kept with the owner's name.
            None => {
                let ended = self.history.get(&(id as u32));
                let user = ended.and_then(|row| row["user"].as_str());
                user.is_some() && user == user_name(uid).as_deref()
            }
        };
        if is_own {
            return true;
        }
        let is_node = row.get("node").is_some();
        if is_node {
            row["jobid"] = Value::Null;
            row["reason"] = Value::Null;
        }
        is_node
    }
}

/// The name of `uid` on this host.
pub(super) fn user_name(uid: u32) -> Option<String> {
    let user = nix::unistd::User::from_uid(uid.into()).ok()??;
    Some(user.name)
}

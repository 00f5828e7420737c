//! What solver and child say to each other: JSON in frames of four bytes' length, little endian.
//! The child is not trusted: lengths are bounded, and the solver checks every number.

use std::io::{self, Read, Write};

use bftrainer_core::allocation::{Problem, Share};
use serde::{Deserialize, Serialize};

use super::milp::{Failure, Progress};

/// Largest frame, bytes; far above what [`Problem::validate`] lets through.
pub const MAX_BYTES: usize = 64 << 20;

/// A problem to solve.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Comes back in every reply to it.
    pub number: u64,
    /// Seconds until the last reply.
    pub limit_s: f64,
    /// Most nodes by which any trainer may change.
    pub max_change: Option<u32>,
    /// The problem.
    pub problem: Problem,
}

/// What the child knows of the answer so far, or at last.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Of the request.
    pub number: u64,
    /// Whether it is the last reply.
    pub last: bool,
    /// The best allocation, as (class, nodes); none in a last reply that says what failed.
    pub shares: Option<Vec<(usize, u32)>>,
    /// What no allocation exceeds.
    pub bound: Option<f64>,
    /// Whether no allocation is better.
    pub optimal: bool,
    /// HiGHS's status when it gave up.
    pub failed_status: Option<i32>,
    /// Whether no allocation is allowed at all.
    pub infeasible: bool,
}

impl Reply {
    /// What is known, for good if `last`.
    pub fn progress(number: u64, progress: &Progress, last: bool) -> Self {
        let shares = progress.shares.iter();
        Self {
            number,
            last,
            shares: Some(shares.map(|share| (share.class, share.nodes)).collect()),
            bound: Some(progress.bound).filter(|bound| bound.is_finite()),
            optimal: progress.optimal,
            failed_status: None,
            infeasible: false,
        }
    }

    /// What went wrong.
    pub fn failure(number: u64, failure: Failure) -> Self {
        Self {
            number,
            last: true,
            shares: None,
            bound: None,
            optimal: false,
            failed_status: match failure {
                Failure::Status(code) => Some(code),
                Failure::Infeasible => None,
            },
            infeasible: failure == Failure::Infeasible,
        }
    }

    /// The allocation, if there is one.
    pub fn shares(&self) -> Option<Vec<Share>> {
        let shares = self.shares.as_ref()?.iter();
        Some(
            shares
                .map(|&(class, nodes)| Share::new(class, nodes))
                .collect(),
        )
    }
}

/// Writes one frame.
pub fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    if length > MAX_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    to.write_all(&frame)?;
    to.flush()
}

/// Reads one frame; `None` at the end of the stream.
pub fn read<T: for<'de> Deserialize<'de>>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut header = [0; 4];
    match from.read_exact(&mut header) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(header) as usize;
    if length > MAX_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = Vec::new();
    if from.take(length as u64).read_to_end(&mut body)? < length {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&body)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_as_it_was() {
        let progress = Progress {
            shares: vec![Share::new(2, 7), Share::NONE],
            bound: 0.1 + 0.2,
            optimal: false,
        };
        let reply = Reply::progress(7, &progress, true);
        let mut bytes = Vec::new();
        write(&mut bytes, &reply).unwrap();
        let mut stream = &bytes[..];
        assert_eq!(read(&mut stream).unwrap(), Some(reply));
        assert_eq!(read::<Reply>(&mut stream).unwrap(), None);
    }

    #[test]
    fn broken_frames_are_refused() {
        let read = |mut bytes: &[u8]| read::<Reply>(&mut bytes);
        assert!(read(&[255, 255, 255, 255, b'{']).is_err());
        assert!(read(&[2, 0, 0, 0, b'{', b'x']).is_err());
        assert_eq!(read(&[9, 0, 0, 0, b'{']).unwrap(), None);
    }
}

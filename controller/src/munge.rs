//! Munge: proof of a peer's uid on any node of the cluster, over libmunge.
//!
//! Both calls block for a few milliseconds, and for up to a second when munged
//! does not answer: keep them off an event loop's thread.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use bftrainer::sys;
use thiserror::Error;

/// Where munged listens when neither Slurm nor the caller says otherwise.
const DEFAULT_SOCKET: &str = "libmunge's default socket";

/// What a valid credential says.
#[derive(Clone, Debug, PartialEq)]
pub struct Credential {
    /// Who made it.
    pub uid: u32,
    /// The maker's group.
    pub gid: u32,
    /// What the maker put in.
    pub payload: Vec<u8>,
}

/// Why a credential could not be made or believed.
#[derive(Debug, Error, PartialEq)]
pub enum MungeError {
    /// No munged at the socket.
    #[error("munged does not answer at {0}: is it running on this host? ({1})")]
    NotRunning(String, String),
    /// Older than its life time.
    #[error(
        "the munge credential has expired: the two hosts' clocks differ, or the peer is very slow"
    )]
    Expired,
    /// From the future.
    #[error("the munge credential is from the future: the two hosts' clocks differ")]
    Rewound,
    /// Seen before.
    #[error("the munge credential was used before")]
    Replayed,
    /// Another cluster's key, or nonsense.
    #[error("the munge credential is not valid here: do both hosts have the same munge key? ({0})")]
    Invalid(String),
    /// Anything else libmunge says.
    #[error("munge: {0}")]
    Other(String),
    /// A socket path that C can't take.
    #[error("munge socket {0}: the path holds a zero byte")]
    BadPath(PathBuf),
}

/// A credential over `payload`, made by munged at `socket` (`None`: libmunge's
/// default) for the calling user.
pub fn encode(payload: &[u8], socket: Option<&Path>) -> Result<String, MungeError> {
    let context = Context::new(socket)?;
    let length = i32::try_from(payload.len())
        .map_err(|_| MungeError::Other(format!("{} bytes are too many", payload.len())))?;
    let mut credential = ptr::null_mut();
    // SAFETY: the context is live, payload is `length` readable bytes that munge
    // only reads, and `credential` receives an allocated C string or null.
    let code = unsafe {
        sys::munge_encode(
            &mut credential,
            context.0,
            payload.as_ptr().cast::<c_void>(),
            length,
        )
    };
    let credential = Allocated(credential.cast());
    context.check(code, socket)?;
    if credential.0.is_null() {
        return Err(MungeError::Other("no credential was made".into()));
    }
    // SAFETY: on success munge returned a terminated string.
    let text = unsafe { CStr::from_ptr(credential.0.cast()) };
    Ok(text.to_string_lossy().into_owned())
}

/// Who made `credential` and what it carries, by munged at `socket`. Each
/// credential is believed once.
pub fn decode(credential: &str, socket: Option<&Path>) -> Result<Credential, MungeError> {
    let context = Context::new(socket)?;
    let text =
        CString::new(credential).map_err(|_| MungeError::Invalid("it holds a zero byte".into()))?;
    let (mut payload, mut length) = (ptr::null_mut(), 0);
    let (mut uid, mut gid) = (u32::MAX, u32::MAX);
    // SAFETY: the context is live, `text` is a terminated string, and the four
    // out-pointers are valid; `payload` receives an allocated buffer or null.
    let code = unsafe {
        sys::munge_decode(
            text.as_ptr(),
            context.0,
            &mut payload,
            &mut length,
            &mut uid,
            &mut gid,
        )
    };
    let payload = Allocated(payload);
    context.check(code, socket)?;
    let bytes = match usize::try_from(length) {
        Ok(length) if length > 0 && !payload.0.is_null() => {
            // SAFETY: on success munge returned `length` bytes at `payload`.
            unsafe { std::slice::from_raw_parts(payload.0.cast::<u8>(), length) }.to_vec()
        }
        _ => Vec::new(),
    };
    Ok(Credential {
        uid,
        gid,
        payload: bytes,
    })
}

/// A munge context with the socket set.
struct Context(sys::munge_ctx_t);

impl Context {
    fn new(socket: Option<&Path>) -> Result<Self, MungeError> {
        // SAFETY: no preconditions; null means out of memory.
        let context = Context(unsafe { sys::munge_ctx_create() });
        if context.0.is_null() {
            return Err(MungeError::Other("out of memory".into()));
        }
        if let Some(path) = socket {
            let c_path = CString::new(path.as_os_str().as_bytes())
                .map_err(|_| MungeError::BadPath(path.to_owned()))?;
            // SAFETY: the context is live; this option takes one C string, which
            // munge copies.
            let code = unsafe {
                sys::munge_ctx_set(context.0, sys::MUNGE_OPT_SOCKET as _, c_path.as_ptr())
            };
            context.check(code, socket)?;
        }
        Ok(context)
    }

    /// `code` as a result, with libmunge's own words where ours say less.
    fn check(&self, code: sys::munge_err_t, socket: Option<&Path>) -> Result<(), MungeError> {
        if code == sys::EMUNGE_SUCCESS {
            return Ok(());
        }
        let detail = self.detail(code);
        Err(match code {
            sys::EMUNGE_SOCKET | sys::EMUNGE_TIMEOUT => {
                let place = socket.map_or(DEFAULT_SOCKET.into(), |path| path.display().to_string());
                MungeError::NotRunning(place, detail)
            }
            sys::EMUNGE_CRED_EXPIRED => MungeError::Expired,
            sys::EMUNGE_CRED_REWOUND => MungeError::Rewound,
            sys::EMUNGE_CRED_REPLAYED => MungeError::Replayed,
            sys::EMUNGE_BAD_CRED
            | sys::EMUNGE_BAD_VERSION
            | sys::EMUNGE_BAD_CIPHER
            | sys::EMUNGE_BAD_MAC
            | sys::EMUNGE_BAD_ZIP
            | sys::EMUNGE_BAD_REALM
            | sys::EMUNGE_CRED_INVALID
            | sys::EMUNGE_CRED_UNAUTHORIZED => MungeError::Invalid(detail),
            _ => MungeError::Other(detail),
        })
    }

    fn detail(&self, code: sys::munge_err_t) -> String {
        // SAFETY: the context is live; the text belongs to it and is copied here.
        let text = unsafe { sys::munge_ctx_strerror(self.0) };
        let text = if text.is_null() {
            // SAFETY: takes any code and returns static text.
            unsafe { sys::munge_strerror(code) }
        } else {
            text
        };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: both functions return terminated strings.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: created by munge_ctx_create (null is allowed), destroyed once.
        unsafe { sys::munge_ctx_destroy(self.0) }
    }
}

/// Memory from munge, freed with the C library's free.
struct Allocated(*mut c_void);

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: munge hands out malloc'd memory or null; freed once.
        unsafe { libc::free(self.0) }
    }
}

//! Files of text, plain or compressed (.gz, .zst; told by their first bytes), read line by line
//! with a bound on the length of a line.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::read::MultiGzDecoder;

use super::TraceError;

/// Longest line that is read, bytes: a node list of a job on a whole machine fits many times.
const MAX_LINE_BYTES: u64 = 4 << 20;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// An open file, decompressed.
pub(super) struct File {
    /// Where it is.
    pub(super) path: PathBuf,
    /// Its text.
    pub(super) text: Box<dyn BufRead>,
    /// How far it has been read.
    pub(super) meter: Meter,
}

/// How much of a file has been read, as it lies on disk.
#[derive(Clone, Default)]
pub(super) struct Meter {
    read_bytes: Rc<Cell<u64>>,
    all_bytes: u64,
}

impl Meter {
    /// Part of the file, from 0 to 1.
    pub(super) fn share(&self) -> f64 {
        self.read_bytes.get() as f64 / self.all_bytes.max(1) as f64
    }
}

/// A reader that counts.
struct Metered<R> {
    reader: R,
    meter: Meter,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.reader.read(buffer)?;
        let read_bytes = &self.meter.read_bytes;
        read_bytes.set(read_bytes.get() + bytes as u64);
        Ok(bytes)
    }
}

impl File {
    pub(super) fn open(path: &Path) -> Result<Self, TraceError> {
        let error = |source| TraceError::io(path, source);
        let file = std::fs::File::open(path).map_err(error)?;
        let bytes = file.metadata().map_err(error)?.len();
        Self::from_reader(path, file, bytes).map_err(error)
    }

    /// A file whose `all_bytes` bytes come from `reader`.
    pub(super) fn from_reader(
        path: &Path,
        reader: impl Read + 'static,
        all_bytes: u64,
    ) -> Result<Self, std::io::Error> {
        let meter = Meter {
            all_bytes,
            ..Meter::default()
        };
        let metered = Metered {
            reader,
            meter: meter.clone(),
        };
        let mut reader = BufReader::with_capacity(1 << 16, metered);
        let head = reader.fill_buf()?;
        let text: Box<dyn BufRead> = if head.starts_with(&GZIP) {
            Box::new(BufReader::with_capacity(
                1 << 16,
                MultiGzDecoder::new(reader),
            ))
        } else if head.starts_with(&ZSTD) {
            Box::new(BufReader::with_capacity(
                1 << 16,
                zstd::stream::read::Decoder::with_buffer(reader)?,
            ))
        } else {
            Box::new(reader)
        };
        Ok(File {
            path: path.to_owned(),
            text,
            meter,
        })
    }

    /// The beginning of the text, as much as is at hand; it stays there to be read.
    pub(super) fn peek(&mut self) -> Result<&[u8], TraceError> {
        self.text
            .fill_buf()
            .map_err(|source| TraceError::io(&self.path, source))
    }
}

/// The lines of a file with their numbers, from 1, without their ends; an error ends them.
pub(super) struct Lines {
    file: File,
    number: u64,
    ended: bool,
}

impl Lines {
    pub(super) fn new(file: File) -> Self {
        Lines {
            file,
            number: 0,
            ended: false,
        }
    }

    fn read(&mut self) -> Result<Option<(u64, String)>, TraceError> {
        let path = &self.file.path;
        self.number += 1;
        let mut bytes = Vec::new();
        let length = (&mut self.file.text)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut bytes)
            .map_err(|source| TraceError::io(path, source))?;
        if length == 0 {
            return Ok(None);
        }
        if length as u64 == MAX_LINE_BYTES {
            let problem = format!("longer than {MAX_LINE_BYTES} bytes; is this a text file?");
            return Err(TraceError::line(path, self.number, "the line", problem));
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        match String::from_utf8(bytes) {
            Ok(line) => Ok(Some((self.number, line))),
            Err(error) => {
                let byte = error.utf8_error().valid_up_to() + 1;
                let problem = format!("byte {byte} is not UTF-8");
                Err(TraceError::line(path, self.number, "the line", problem))
            }
        }
    }
}

impl Iterator for Lines {
    type Item = Result<(u64, String), TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let line = self.read().transpose();
        self.ended = !matches!(line, Some(Ok(_)));
        line
    }
}

//! Small files, with a limit for size and time: a path may also name a device.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The largest file that is read. The certificates of all authorities together have a quarter of a megabyte.
const LARGEST: u64 = 4 << 20;

/// All of a file.
///
/// # Errors
/// Also where it is larger than any that redlock has use for.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_all(File::open(path)?)
}

/// All that comes from a stream, under the same condition.
///
/// # Errors
/// As [`read`].
pub fn read_all(stream: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        let why = format!("it is larger than {} MiB", LARGEST >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// All of a file that is text.
///
/// # Errors
/// As [`read`], and where it isn't UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_an_end_is_not_read_to_its_end() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.to_string(), "it is larger than 4 MiB");
        let largest = io::repeat(7).take(LARGEST);
        assert_eq!(read_all(largest).unwrap().len() as u64, LARGEST);
        assert!(read_text(Path::new("/dev/null")).unwrap().is_empty());
    }
}

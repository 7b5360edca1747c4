//! Small files: read with a limit for size and time, as a path may also name a device; and written as a whole or not
//! at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use nix::unistd::geteuid;

use crate::sys;

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

/// Whoever reads a file that is replaced may be another user.
const FOR_ALL: u32 = 0o644;

/// Replaces a file: whoever reads it finds the old text or the new one, never a part, and where the new one can't be
/// written the old one stays. Its owner and mode stay, too. A link is followed, unless another user may have put it
/// there. A device or a pipe is written to.
///
/// # Errors
/// Where the text can't be written; nothing of it is left then.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    // Beyond the limit of file sizes the write fails; by default a signal would end the process before.
    sys::ignore(libc::SIGXFSZ);
    let there = match fs::symlink_metadata(path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let is_link = there.as_ref().is_some_and(fs::Metadata::is_symlink);
    let there = if is_link {
        Some(fs::metadata(path)?)
    } else {
        there
    };
    // What /dev/stdout leads to may be a log with more in it.
    if path.starts_with("/dev") || there.as_ref().is_some_and(|there| !there.is_file()) {
        return append(path, text);
    }
    let path = if is_link {
        check_link(path)?;
        fs::canonicalize(path)?
    } else {
        path.to_owned()
    };
    let number = getrandom::u64().map_err(io::Error::other)?;
    let mut name = OsString::from(path.file_name().unwrap_or_default());
    name.push(format!(".tmp-{number:016x}"));
    let beside = path.with_file_name(name);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    let written = (|| {
        let mut mode = FOR_ALL;
        if let Some(there) = &there {
            mode = there.mode() & 0o777;
            // Only root may give a file away.
            let _ = fchown(&file, Some(there.uid()), Some(there.gid()));
        }
        // Whatever the umask of a cron job is.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        // Some file systems find out only now that the disk is full; and a crash would leave an empty file.
        file.sync_all()?;
        fs::rename(&beside, &path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Writes to a device or a pipe. Nothing is waited for: a pipe may have no reader.
fn append(path: &Path, text: &str) -> io::Result<()> {
    let mut there = OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    there.write_all(text.as_bytes())
}

/// Where all may write, a link of another user could lead to any file that is ours.
fn check_link(link: &Path) -> io::Result<()> {
    let beside = link.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = fs::metadata(beside.unwrap_or(Path::new(".")))?;
    let owner = fs::symlink_metadata(link)?.uid();
    if [0, geteuid().as_raw(), dir.uid()].contains(&owner) {
        return Ok(());
    }
    let why = "it is a link that another user has put there";
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_readable_for_all_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.prom");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("a.prom", &link).unwrap();
        for (path, text) in [(&file, "one"), (&file, "two"), (&link, "three")] {
            replace(path, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, FOR_ALL);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_mode_of_a_replaced_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.prom");
        fs::write(&file, "one").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        replace(&file, "two").unwrap();
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }

    #[test]
    fn a_link_that_leads_nowhere_and_a_pipe_without_a_reader_are_errors_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("nothing", &link).unwrap();
        assert_eq!(
            replace(&link, "text").unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = replace(&pipe, "text").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
    }

    #[test]
    fn a_pipe_is_written_to_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut both = OpenOptions::new();
        let mut there = both.read(true).write(true).open(&pipe).unwrap();
        replace(&pipe, "text").unwrap();
        let mut text = [0; 4];
        assert!(!fs::metadata(&pipe).unwrap().is_file());
        there.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"text");
        let error = replace(dir.path(), "text").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
    }

    #[test]
    fn a_device_without_an_end_is_not_read_to_its_end() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.to_string(), "it is larger than 4 MiB");
        let largest = io::repeat(7).take(LARGEST);
        assert_eq!(read_all(largest).unwrap().len() as u64, LARGEST);
        assert!(read_text(Path::new("/dev/null")).unwrap().is_empty());
    }
}

//! Small files. Reads have a limit of size and time, because a path may also name a device. Writes are complete or fail.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::sys;

/// Largest file that redlock reads, in bytes. The certificates of all authorities together have a quarter of a megabyte.
const LARGEST: u64 = 4 << 20;

/// Longest first line, in bytes: the kernel's limit for a variable of the environment.
const LONGEST_LINE: u64 = 128 << 10;

/// Longest wait for a process that opens a pipe to write.
const WRITER_COMES: Duration = Duration::from_secs(1);

/// Longest wait for the end of the text in a pipe.
const WRITER_ENDS: Duration = Duration::from_secs(10);

/// Reads all of a file, or of a pipe.
///
/// # Errors
/// In addition to I/O errors: if the file is larger than any that redlock needs, or if nobody writes into the pipe.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    // Without this flag, opening a pipe would wait for its writer.
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path)?;
    let is_pipe = file.metadata()?.file_type().is_fifo();
    let (mut stream, mut bytes) = (file.take(LARGEST + 1), Vec::new());
    let opened_at = Instant::now();
    loop {
        let limit = match stream.read_to_end(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => WRITER_ENDS,
            Ok(0) if is_pipe && bytes.is_empty() => WRITER_COMES,
            result => return result.and_then(|_| limited(bytes)),
        };
        if opened_at.elapsed() >= limit {
            let why = "it is a pipe that nobody writes into";
            return Err(io::Error::new(ErrorKind::TimedOut, why));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Reads all of a stream, with the same size limit.
///
/// # Errors
/// Like [`read`].
pub fn read_all(stream: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(LARGEST + 1).read_to_end(&mut bytes)?;
    limited(bytes)
}

/// Returns the bytes, or an error if there are too many.
fn limited(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    if bytes.len() as u64 > LARGEST {
        let why = format!("it is larger than {} MiB", LARGEST >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Reads the file that an option names, or for `-` the first line of standard input.
///
/// # Errors
/// Like [`read`], or if the line is longer than any environment variable.
pub fn read_or_input(path: &Path) -> io::Result<Vec<u8>> {
    if path == Path::new("-") {
        first_line_of_input()
    } else {
        read(path)
    }
}

/// Reads the first line of standard input byte by byte, because another process reads the rest.
fn first_line_of_input() -> io::Result<Vec<u8>> {
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut line = Vec::new();
    let input = BufReader::with_capacity(1, input);
    input.take(LONGEST_LINE + 1).read_until(b'\n', &mut line)?;
    if line.pop_if(|byte| *byte == b'\n').is_none() && line.len() as u64 > LONGEST_LINE {
        let why = format!("its first line is longer than {} KiB", LONGEST_LINE >> 10);
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(line)
}

/// Reads all of a text file.
///
/// # Errors
/// Like [`read`], or if the file isn't UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| ErrorKind::InvalidData.into())
}

/// Mode of a new file, which other users may read.
const FOR_ALL: u32 = 0o644;

/// Replaces a file. Readers see either the old text or the new one, never a part. If the new text can't be written, the old
/// one stays. The new file keeps the owner and the mode of the old one.
///
/// Replaces a link at `path`, and never follows it: otherwise the owner of the directory could have any file overwritten.
/// Writes to a device or a pipe in /dev, such as /dev/stdout, and refuses any other.
///
/// # Errors
/// If the text can't be written. Nothing of it remains then.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    // Makes a write beyond the limit of file sizes fail. By default the signal would end the process.
    sys::ignore(libc::SIGXFSZ);
    let is_device = |directory| path.parent() == Some(Path::new(directory));
    if is_device("/dev") || is_device("/dev/fd") {
        return append(path, text);
    }
    let name = path.file_name().ok_or(ErrorKind::IsADirectory)?;
    let directory = open_directory(path.parent().unwrap_or(Path::new("")))?;
    let old = match openat(&directory, name, PATH_ONLY, Mode::empty()) {
        Err(Errno::ENOENT) => None,
        old => Some(File::from(old?).metadata()?).filter(|old| !old.is_symlink()),
    };
    if old.as_ref().is_some_and(Metadata::is_dir) {
        return Err(ErrorKind::IsADirectory.into());
    }
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        let why = "it is a device, a pipe or a socket; give a file, or - for standard output";
        return Err(io::Error::other(why));
    }
    let mut new_name = name.to_owned();
    let number = getrandom::u64().map_err(io::Error::other)?;
    new_name.push(format!(".tmp-{number:016x}"));
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let private = Mode::S_IRUSR | Mode::S_IWUSR;
    let mut file = File::from(openat(&directory, &*new_name, flags, private)?);
    let written = (|| {
        let mut mode = FOR_ALL;
        if let Some(old) = old {
            mode = old.mode() & 0o777;
            // Only root may change the owner.
            let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
        }
        // Overrides the umask, for example of a cron job.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        // Some file systems report a full disk only now, and without this a crash would leave an empty file.
        file.sync_all()?;
        Ok(renameat(&directory, &*new_name, &directory, name)?)
    })();
    if written.is_err() {
        let _ = unlinkat(&directory, &*new_name, UnlinkatFlags::NoRemoveDir);
    }
    written
}

/// Writes to a device or a pipe. Doesn't block, because a pipe may have no reader.
fn append(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.append(true).custom_flags(libc::O_NONBLOCK);
    options.open(path)?.write_all(text.as_bytes())
}

/// Flags for opening a file, directory or link itself, only to inspect it.
const PATH_ONLY: OFlag = OFlag::O_PATH
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Largest number of links on a path to a directory, as in the kernel.
const MAX_LINKS: usize = 40;

/// Opens a directory, one component after the other. Follows links of root and of this user.
///
/// # Errors
/// `Other` for another user's link, which could lead to any directory.
fn open_directory(path: &Path) -> io::Result<File> {
    let mut left = components(path);
    let mut directory = File::from(open(".", PATH_ONLY, Mode::empty())?);
    let mut links = 0;
    while let Some(part) = left.pop() {
        let next = File::from(openat(&directory, &*part, PATH_ONLY, Mode::empty())?);
        let metadata = next.metadata()?;
        if !metadata.is_symlink() {
            directory = next;
            continue;
        }
        if ![0, geteuid().as_raw()].contains(&metadata.uid()) {
            let part = part.display();
            let why = format!("{part} is a link that another user has put there");
            return Err(io::Error::other(why));
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::ELOOP.into());
        }
        left.extend(components(Path::new(&readlinkat(&next, "")?)));
    }
    Ok(directory)
}

/// Returns the components of a path, the last one first.
fn components(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_replaced_file_is_readable_for_all_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.prom");
        for text in ["one", "two"] {
            replace(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, FOR_ALL);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_is_replaced_and_what_it_leads_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (link, victim) = (dir.path().join("link"), dir.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        for target in ["victim", "nothing"] {
            let _ = fs::remove_file(&link);
            symlink(target, &link).unwrap();
            replace(&link, "text").unwrap();
            assert!(!fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read_to_string(&link).unwrap(), "text");
            assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn own_links_to_directories_are_followed_but_not_in_circles() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("real/deep")).unwrap();
        symlink(at("real"), at("absolute")).unwrap();
        symlink("../absolute/deep", at("real/relative")).unwrap();
        symlink("circle", at("circle")).unwrap();
        replace(&at("absolute/relative/../deep/file"), "text").unwrap();
        assert_eq!(fs::read_to_string(at("real/deep/file")).unwrap(), "text");
        let error = replace(&at("circle/file"), "text").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
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
    fn a_pipe_or_a_directory_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let error = replace(&pipe, "text").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Other);
        assert!(!fs::metadata(&pipe).unwrap().is_file());
        let error = replace(dir.path(), "text").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        replace(Path::new("/dev/null"), "text").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_pipe_is_read_to_its_end_and_one_without_a_writer_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let error = read(&pipe).unwrap_err();
        assert_eq!(error.to_string(), "it is a pipe that nobody writes into");
        let to = pipe.clone();
        let writer = thread::spawn(move || fs::write(to, "text"));
        assert_eq!(read(&pipe).unwrap(), b"text");
        writer.join().unwrap().unwrap();
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

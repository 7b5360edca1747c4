//! Starting a program in a child.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{self, PipeReader, Read};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::unistd::Pid;

use super::{MASK_AT_START, SIGPIPE_WAS_IGNORED, STREAM_WAS_CLOSED};

/// A program to execute, with its settings.
pub struct SpawnSpec<'a> {
    /// Paths of the program, tried in order as execvp(3) does.
    pub candidates: &'a [CString],
    pub arguments: &'a [CString],
    /// `NAME=value` texts.
    pub environment: &'a [&'a CStr],
    /// Names of further variables, whose value is the child's pid.
    pub pid_variables: &'a [&'a CStr],
    /// True if the child leads a separate process group.
    pub own_group: bool,
    /// True if SIGCHLD was ignored at the start of redlock.
    pub sigchld_ignored: bool,
    /// Latest time of the start, since boot.
    pub not_after: Option<Duration>,
}

/// Reason why a program was not started.
#[derive(Debug)]
pub enum SpawnError {
    /// The child process couldn't be created.
    NoProcess(io::Error),
    /// The program can't be executed.
    CannotExecute(io::Error),
}

/// Largest number of decimal digits of a pid.
const PID_DIGITS: usize = 10;

/// Arguments of the child of [`spawn`], in memory that belongs to its parent.
struct ChildArgs<'a> {
    candidates: &'a [*const c_char],
    arguments: &'a [*const c_char],
    environment: &'a [*const c_char],
    /// Places for the digits of the child's pid: after `NAME=`, with zero bytes after them.
    pid_digits: &'a [*mut u8],
    /// `sh`, a place for the path of a script, and the script's arguments.
    shell_arguments: *mut *const c_char,
    own_group: bool,
    sigchld_ignored: bool,
    not_after: Option<libc::timespec>,
    parent: i32,
    /// Descriptor for the error that prevented the start.
    errors: c_int,
}

/// Starts a program in a child with the signals and standard streams that redlock itself got (the standard library would
/// reset SIGPIPE and the mask). The kernel kills the child when the calling thread ends, and so when redlock dies: the
/// caller must be the main thread.
///
/// The child shares this process's memory until it executes the program, as with vfork(2), and in glibc's and musl's
/// `posix_spawn`. A fork instead would copy the page tables, which costs a tenth of a short run. `posix_spawn` itself can't
/// request the kernel's kill. An emulator may copy the memory anyway, so errors come back through a pipe, which the program's
/// start closes.
///
/// # Errors
/// The error of the last `execve`, by the rules of execvp(3): `EACCES` takes precedence over `ENOENT`.
pub fn spawn(spec: &SpawnSpec) -> Result<i32, SpawnError> {
    let mut pid_texts: Vec<Vec<u8>> = spec
        .pid_variables
        .iter()
        .map(|name| [name.to_bytes(), b"=", &[0; PID_DIGITS + 1]].concat())
        .collect();
    let texts: Vec<*mut u8> = pid_texts.iter_mut().map(Vec::as_mut_ptr).collect();
    let (candidates, arguments) = (pointers(spec.candidates), pointers(spec.arguments));
    let given = spec.environment.iter().map(|text| text.as_ptr());
    let pids = texts.iter().map(|text| text.cast_const().cast());
    let environment: Vec<_> = given.chain(pids).chain([ptr::null()]).collect();
    let pid_digits = texts.iter().zip(spec.pid_variables);
    // SAFETY: the name and its `=` are a part of the text.
    let pid_digits = pid_digits.map(|(text, name)| unsafe { text.add(name.count_bytes() + 1) });
    let pid_digits: Vec<*mut u8> = pid_digits.collect();
    let mut shell_arguments = vec![c"sh".as_ptr(), ptr::null()];
    shell_arguments.extend(arguments.iter().skip(1));
    let (errors, reported) = io::pipe().map_err(SpawnError::NoProcess)?;
    let mut child = ChildArgs {
        candidates: &candidates,
        arguments: &arguments,
        environment: &environment,
        pid_digits: &pid_digits,
        shell_arguments: shell_arguments.as_mut_ptr(),
        own_group: spec.own_group,
        sigchld_ignored: spec.sigchld_ignored,
        not_after: spec.not_after.map(|time| *TimeSpec::from(time).as_ref()),
        parent: Pid::this().as_raw(),
        errors: reported.as_raw_fd(),
    };
    // A stack far larger than a few system calls need. Only used pages take memory.
    let mut stack = vec![MaybeUninit::<u128>::uninit(); 32 * 1024 / size_of::<u128>()];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child runs on its own stack, whose top is passed. This thread is suspended until the child has executed or
    // ended, so all its arguments outlive it. The child makes only system calls. No signal handler of redlock can run in it,
    // because redlock has none except for faults.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len());
        libc::clone(execute, top.cast(), flags, (&raw mut child).cast())
    };
    if pid == -1 {
        return Err(SpawnError::NoProcess(io::Error::last_os_error()));
    }
    drop(reported);
    match read_error(errors) {
        None => Ok(pid),
        Some(error) => {
            // SAFETY: the child has ended, and only this process can reap it.
            unsafe {
                libc::waitpid(pid, ptr::null_mut(), 0);
            }
            // The child reports that its parent has ended, or seems to have: no program was tried.
            if error.raw_os_error() == Some(libc::ESRCH) {
                return Err(SpawnError::NoProcess(error));
            }
            Err(SpawnError::CannotExecute(error))
        }
    }
}

/// Returns the error that the child has reported, or `None` if it executed a program or was killed.
fn read_error(mut errors: PipeReader) -> Option<io::Error> {
    let mut error = [0; size_of::<c_int>()];
    errors.read_exact(&mut error).ok()?;
    Some(io::Error::from_raw_os_error(c_int::from_ne_bytes(error)))
}

/// Returns texts in the kernel's format of a list.
fn pointers(texts: &[impl AsRef<CStr>]) -> Vec<*const c_char> {
    let texts = texts.iter().map(|text| text.as_ref().as_ptr());
    texts.chain([ptr::null()]).collect()
}

/// Runs in the child of [`spawn`]. Ends only if nothing could be executed.
extern "C" fn execute(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes this argument, and is suspended meanwhile. All pointers in it point to texts
    // that end with a zero byte, and the lists end with a null pointer. Only system calls follow.
    unsafe {
        let child = &*argument.cast::<ChildArgs>();
        if child.own_group {
            libc::setpgid(0, 0);
        }
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if parent_has_ended(child) {
            // The parent ended before the call above, so the kernel won't kill this process.
            fail(child, libc::ESRCH);
        }
        let sigpipe = if SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed) {
            libc::SIG_IGN
        } else {
            libc::SIG_DFL
        };
        libc::signal(libc::SIGPIPE, sigpipe);
        if child.sigchld_ignored {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        }
        for (stream, was_closed) in (0..).zip(&STREAM_WAS_CLOSED) {
            if was_closed.load(Ordering::Relaxed) {
                libc::close(stream);
            }
        }
        if let Some(time) = &child.not_after {
            die_at(time);
        }
        // The C library's call would leave its own signals out of the mask.
        let mask = MASK_AT_START.load(Ordering::Relaxed);
        let none = ptr::null_mut::<c_void>();
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            none,
            8,
        );
        for &digits in child.pid_digits {
            write_decimal(libc::getpid().unsigned_abs(), digits);
        }
        fail(child, execute_first(child))
    }
}

/// Writes a number of at most [`PID_DIGITS`] decimal digits.
///
/// # Safety
/// The digits must fit into the memory at `digits`.
unsafe fn write_decimal(number: u32, mut digits: *mut u8) {
    let mut unit = 10_u32.pow(number.checked_ilog10().unwrap_or_default());
    while unit > 0 {
        // SAFETY: the caller provides memory for all digits, and this is the next one.
        unsafe {
            *digits = b'0' + u8::try_from(number / unit % 10).unwrap_or_default();
            digits = digits.add(1);
        }
        unit /= 10;
    }
}

/// Returns true if the parent has ended. A parent outside of this pid namespace, of which the child is the first
/// process, counts as alive: it was, a few system calls ago.
fn parent_has_ended(child: &ChildArgs) -> bool {
    let parent = Pid::parent().as_raw();
    parent != 0 && parent != child.parent
}

/// Has the kernel kill this process at a time since boot, unless it executes a program before, which ends its
/// timers. Needed because finding a program on a slow file system may take longer than the lease lasts.
///
/// # Safety
/// For [`execute`] only.
unsafe fn die_at(time: &libc::timespec) {
    // SAFETY: both structures are valid, and zero is a valid value of their other fields.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGKILL;
        let mut timer: c_int = 0;
        let clock = libc::CLOCK_BOOTTIME;
        if libc::syscall(
            libc::SYS_timer_create,
            clock,
            &raw mut event,
            &raw mut timer,
        ) == 0
        {
            let mut setting: libc::itimerspec = std::mem::zeroed();
            setting.it_value = *time;
            let before = ptr::null_mut::<libc::itimerspec>();
            libc::syscall(
                libc::SYS_timer_settime,
                timer,
                libc::TIMER_ABSTIME,
                &raw const setting,
                before,
            );
        }
    }
}

/// Executes the first candidate that can be executed. Returns the error if none can.
///
/// # Safety
/// For [`execute`] only.
unsafe fn execute_first(child: &ChildArgs) -> c_int {
    let mut last = libc::ENOENT;
    let mut refused = false;
    for &path in child.candidates {
        if path.is_null() {
            break;
        }
        // SAFETY: `execute` guarantees the lists, and the second shell argument is the place for a path.
        let error = unsafe {
            libc::execve(path, child.arguments.as_ptr(), child.environment.as_ptr());
            let mut error = *libc::__errno_location();
            if error == libc::ENOEXEC {
                // The shell runs a script without a #! line.
                *child.shell_arguments.add(1) = path;
                let environment = child.environment.as_ptr();
                libc::execve(c"/bin/sh".as_ptr(), child.shell_arguments, environment);
                error = *libc::__errno_location();
                return error;
            }
            error
        };
        match error {
            libc::EACCES => refused = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {
                last = error;
            }
            other => return other,
        }
    }
    if refused { libc::EACCES } else { last }
}

/// Reports an error to the parent, and exits.
///
/// # Safety
/// For [`execute`] only.
unsafe fn fail(child: &ChildArgs, error: c_int) -> ! {
    // SAFETY: the number is valid for the call, and nothing follows.
    unsafe {
        libc::write(child.errors, (&raw const error).cast(), size_of::<c_int>());
        libc::_exit(127)
    }
}

//! `redlock status --watch` on a terminal: one picture that is kept up to date.
//!
//! A thread asks Redis, so that keys, signals and the clock don't wait for an answer. The screen that was
//! there before comes back however this ends.

use std::io::{self, IsTerminal, Read as _};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};

use super::Asked;
use super::picture::Picture;
use crate::clock::{Moment, Timer, now};
use crate::config::Settings;
use crate::exit::Exit;
use crate::lock::{Client, Error, Inspected, Locks};
use crate::report::{self, Line, Style, format_duration, print};
use crate::signal::{SIGINT, SIGQUIT, SIGTSTP, Signals, is_passed_up};
use crate::sys;

/// The clock is shown to the second.
const CLOCK: Duration = Duration::from_secs(1);

/// The thread asks, reads and hands over.
const STACK: usize = 512 * 1024;

/// Shows locks until a key or a signal ends that.
pub fn watch(
    mut client: Client,
    asked: Asked,
    interval: Duration,
    settings: &Settings,
) -> Result<Exit> {
    let signals = Signals::take(true).context("can't watch for signals")?;
    let asked = Arc::new(asked);
    // If Redis can't be reached at the start, there is no picture to keep.
    let locks = settings.locks.clone();
    let found = asked.find(&mut client, &locks)?;
    settings.warn_of_replica(&client);
    let questioner =
        Questioner::start(client, Arc::clone(&asked), locks).context("can't start a thread")?;
    let mut view = View {
        asked,
        picture: Picture::default(),
        previous: None,
        found,
        answered: now(),
        trouble: None,
        colors: report::has_colors(),
    };
    let screen = Screen::open()?;
    let end = view.run(&signals, &questioner, interval, &screen);
    drop(screen);
    end
}

/// What is shown.
struct View {
    asked: Arc<Asked>,
    picture: Picture,
    /// The picture before it, until the next answer.
    previous: Option<Picture>,
    found: Vec<Inspected>,
    /// When the last answer came.
    answered: Moment,
    /// Why no answer has come since then.
    trouble: Option<Error>,
    colors: bool,
}

impl View {
    fn run(
        &mut self,
        signals: &Signals,
        questioner: &Questioner,
        interval: Duration,
        screen: &Screen,
    ) -> Result<Exit> {
        let mut timer = Timer::new()?;
        let mut ask_at = Some(now() + interval);
        self.draw_anew();
        loop {
            if !self.show()? {
                return Ok(Exit::Success);
            }
            let tick = now() + CLOCK.min(interval.max(Duration::from_millis(1)));
            timer.set(Some(ask_at.map_or(tick, |at| at.min(tick))))?;
            let stdin = io::stdin();
            let own = [signals.as_fd(), timer.as_fd(), questioner.answered.as_fd()];
            let keys = screen.settings.is_some().then(|| stdin.as_fd());
            let mut fds: Vec<PollFd> = own
                .into_iter()
                .chain(keys)
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            poll(&mut fds, PollTimeout::NONE).context("can't wait")?;
            let is_typed = fds.get(own.len()).is_some_and(|fd| fd.any() == Some(true));
            if is_typed && Screen::ends_by_key() {
                return Ok(Exit::Success);
            }
            while let Some(received) = signals.next()? {
                match received.signal {
                    SIGINT => return Ok(Exit::Success),
                    SIGTSTP => {
                        screen.leave();
                        signals.suspend()?;
                        screen.enter()?;
                    }
                    SIGQUIT => return Ok(Exit::Interrupted(SIGQUIT)),
                    signal if is_passed_up(signal) => return Ok(Exit::Interrupted(signal)),
                    // A new size of the window, among others: the next picture has it.
                    _ => {}
                }
            }
            if let Some(answer) = questioner.answer() {
                self.take_in(answer);
                self.draw_anew();
                ask_at = Some(now() + interval);
            }
            if ask_at.is_some_and(|at| now() >= at) {
                questioner.ask();
                ask_at = None;
            }
        }
    }

    fn take_in(&mut self, answer: Result<Vec<Inspected>, Error>) {
        match answer {
            Ok(found) => {
                (self.found, self.answered, self.trouble) = (found, now(), None);
            }
            Err(error) => self.trouble = Some(error),
        }
    }

    /// After an answer: what it changed stands out until the next one.
    fn draw_anew(&mut self) {
        let picture = self.asked.picture(&self.found, report::width());
        let before = std::mem::replace(&mut self.picture, picture);
        self.previous = (!before.entries.is_empty()).then_some(before);
    }

    /// Draws over what was there, line by line: nothing flickers.
    fn show(&mut self) -> Result<bool> {
        let (width, height) = report::size().unwrap_or((80, 24));
        // The window may have another size than when the answer came.
        self.picture = self.asked.picture(&self.found, Some(width));
        let mut lines = vec![self.head(width)];
        let room = height.saturating_sub(1);
        lines.extend(
            self.picture
                .fitted((width, room), self.colors, self.previous.as_ref()),
        );
        let text = lines.join("\x1b[K\r\n");
        Ok(print(&format!("\x1b[H{text}\x1b[K\x1b[J"))?)
    }

    /// The first line: the time, how many locks there are, and whether Redis answers.
    fn head(&self, width: usize) -> String {
        let clock = clock();
        let late = now().since(self.answered);
        let (style, what) = if let Some(error) = &self.trouble {
            let late = format_duration(Duration::from_secs(late.as_secs()));
            let what = format!("Redis has not answered for {late}: {error}");
            (Style::Red, what)
        } else {
            let held = self.found.iter().filter(|lock| !lock.holds().is_empty());
            let waiting: usize = self.found.iter().map(|lock| lock.waiters.len()).sum();
            let what = format!("{} held, {waiting} waiting; q quits", held.count());
            (Style::Dim, what)
        };
        let what = report::escaped(&what).into_owned();
        let room = width.saturating_sub(clock.len() + 2);
        let line = Line::of(Style::Bold, clock).and(Style::Plain, "  ");
        line.and(style, &report::truncate(&what, room))
            .painted(self.colors, false)
    }
}

/// The thread that asks Redis.
struct Questioner {
    questions: Sender<()>,
    answers: Receiver<Result<Vec<Inspected>, Error>>,
    /// Readable once an answer has come.
    answered: Arc<EventFd>,
}

impl Questioner {
    fn start(mut client: Client, asked: Arc<Asked>, locks: Locks) -> Result<Self> {
        let answered = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let answered = Arc::new(answered);
        let (questions, questioned) = channel();
        let (answer, answers) = channel();
        let notify = Arc::clone(&answered);
        sys::start_thread("status", STACK, move || {
            while let Ok(()) = questioned.recv() {
                let mut found = asked.find(&mut client, &locks);
                if found.is_err() {
                    // Once more over a fresh connection: it was good before.
                    found = asked.find(&mut client, &locks);
                }
                if answer.send(found).is_err() || notify.write(1).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            questions,
            answers,
            answered,
        })
    }

    fn ask(&self) {
        // Without the thread no answer comes, and that is shown.
        let _ = self.questions.send(());
    }

    fn answer(&self) -> Option<Result<Vec<Inspected>, Error>> {
        let _ = self.answered.read();
        self.answers.try_iter().last()
    }
}

/// The terminal's other screen, which leaves what was shown before as it was.
struct Screen {
    /// How the keyboard was set, where standard input is the terminal.
    settings: Option<Termios>,
}

impl Screen {
    fn open() -> Result<Self> {
        let stdin = io::stdin();
        let settings = if stdin.is_terminal() {
            tcgetattr(&stdin).ok()
        } else {
            None
        };
        let screen = Self { settings };
        screen.enter()?;
        Ok(screen)
    }

    fn enter(&self) -> Result<()> {
        if let Some(settings) = &self.settings {
            // Keys come one by one, and aren't shown; Ctrl-C stays a signal.
            let mut settings = settings.clone();
            settings
                .local_flags
                .remove(LocalFlags::ICANON | LocalFlags::ECHO);
            settings.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
            settings.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
            tcsetattr(io::stdin(), SetArg::TCSADRAIN, &settings)?;
        }
        print("\x1b[?1049h\x1b[?25l\x1b[H\x1b[J")?;
        Ok(())
    }

    fn leave(&self) {
        let _ = print("\x1b[?25h\x1b[?1049l");
        if let Some(settings) = &self.settings {
            let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, settings);
        }
    }

    /// Whether a key was typed that ends the picture, or none can be typed any more.
    fn ends_by_key() -> bool {
        let mut keys = [0; 64];
        match io::stdin().read(&mut keys) {
            Ok(count) => count == 0 || keys[..count].iter().any(|key| b"qQ\x03\x04".contains(key)),
            Err(error) => error.kind() != io::ErrorKind::Interrupted,
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The time of day where the user is.
fn clock() -> String {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since_1970.map_or(0, |time| time.as_secs());
    let local = i64::try_from(seconds).ok().and_then(sys::local_time);
    local.map_or(String::new(), |time| {
        format!("{:02}:{:02}:{:02}", time.hour, time.minute, time.second)
    })
}

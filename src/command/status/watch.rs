//! `redlock status --watch` on a terminal: one picture that is kept up to date.
//!
//! A thread asks Redis, so that keys, signals and the clock don't wait for an answer. The screen that was
//! there before comes back however this ends.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use nix::errno::Errno;

use super::picture::Picture;
use super::questioner::{Answer, Questioner};
use super::screen::Screen;
use super::shown;
use crate::clock::{Moment, Timer, now};
use crate::command::asked::Asked;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::protocol::{Client, Error, Inspected, Locks};
use crate::report::{self, Line, Style, format_duration};
use crate::signal::{
    SIGCONT, SIGINT, SIGTSTP, Signals, block_terminal_stops, ends_waiting, is_passed_up,
};
use crate::sys::poll::{self, PollFd};
use crate::sys::{self, Wakeup};

/// The clock is shown to the second.
const CLOCK: Duration = Duration::from_secs(1);

/// Shows locks until a key or a signal ends that.
pub fn watch(
    mut client: Client,
    asked: Asked,
    interval: Duration,
    settings: &Settings,
) -> Result<Exit> {
    let signals = Signals::take(true).context("can't watch for signals")?;
    block_terminal_stops()?;
    let asked = Arc::new(asked);
    let answers = Answers::start(client.hand_over(), Arc::clone(&asked), settings)
        .context("can't start a thread")?;
    let found = match answers.first(&signals)? {
        // If Redis can't be reached at the start, there is no picture to keep.
        First::Answer(answer) => answer?,
        First::End(exit) => return Ok(exit),
    };
    settings.warn_of_replica(&client);
    settings.warn_of_lone_primary(&client);
    let mut view = View {
        asked,
        locks: settings.locks.clone(),
        picture: Picture::default(),
        previous: None,
        found,
        answered: now(),
        trouble: None,
        colors: report::has_colors(),
    };
    let screen = Screen::new().context("can't open the terminal")?;
    view.run(&signals, &answers, interval, &screen)
}

/// How watching ends by a signal; `None` for one that doesn't end it.
fn end_by(signal: i32) -> Option<Exit> {
    match signal {
        SIGINT => Some(Exit::Success),
        signal if is_passed_up(signal) => Some(Exit::Interrupted(signal)),
        signal if ends_waiting(signal) => Some(Exit::Signal(signal)),
        _ => None,
    }
}

/// Takes the screen, as soon as the terminal is this job's; how that ends where a signal ends it before.
fn enter(screen: &Screen, signals: &Signals) -> Result<Option<Exit>> {
    while screen.is_in_background() {
        // What came while this job was stopped would find it stopped again.
        while let Some(received) = signals.next()? {
            if let Some(exit) = end_by(received.signal) {
                return Ok(Some(exit));
            }
        }
        if !signals.suspend_in_background()? {
            return Err(io::Error::from(Errno::EIO)).context("can't use the terminal");
        }
    }
    screen.enter()?;
    Ok(None)
}

/// What is shown.
struct View {
    asked: Arc<Asked>,
    locks: Locks,
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
        answers: &Answers,
        interval: Duration,
        screen: &Screen,
    ) -> Result<Exit> {
        let mut timer = Timer::new()?;
        let mut ask_at = Some(now() + interval);
        if let Some(exit) = enter(screen, signals)? {
            return Ok(exit);
        }
        self.draw_anew();
        loop {
            // What the terminal hasn't taken yet must not be cut.
            screen.write_rest()?;
            if !screen.is_behind() {
                self.show(screen)?;
            }
            let tick = now() + CLOCK.min(interval.max(Duration::from_millis(1)));
            timer.set(Some(ask_at.map_or(tick, |at| at.min(tick))))?;
            let is_typed = wait(signals, &timer, answers, screen)?;
            while let Some(received) = signals.next()? {
                if let Some(exit) = end_by(received.signal) {
                    return Ok(exit);
                }
                let end = match received.signal {
                    SIGTSTP => {
                        screen.leave();
                        signals.suspend()?;
                        enter(screen, signals)?
                    }
                    // After a stop that wasn't ours the terminal may be another job's.
                    SIGCONT => enter(screen, signals)?,
                    // A new size of the window, among others: the next picture has it.
                    _ => None,
                };
                if let Some(exit) = end {
                    return Ok(exit);
                }
            }
            if is_typed && Screen::ends_by_key() {
                return Ok(Exit::Success);
            }
            if let Some(answer) = answers.latest() {
                self.take_in(answer);
                self.draw_anew();
                ask_at = Some(now() + interval);
            }
            if ask_at.is_some_and(|at| now() >= at) {
                answers.questioner.ask();
                ask_at = None;
            }
        }
    }

    fn take_in(&mut self, answer: Answer) {
        match answer {
            Ok(found) => {
                (self.found, self.answered, self.trouble) = (found, now(), None);
            }
            Err(error) => self.trouble = Some(error),
        }
    }

    /// After an answer: what it changed stands out until the next one.
    fn draw_anew(&mut self) {
        let picture = shown(&self.asked, &self.found, report::width(), &self.locks);
        let before = std::mem::replace(&mut self.picture, picture);
        self.previous = (!before.entries.is_empty()).then_some(before);
    }

    /// Draws over what was there, line by line: nothing flickers.
    fn show(&mut self, screen: &Screen) -> io::Result<()> {
        let (width, height) = report::size().unwrap_or((80, 24));
        // The window may have another size than when the answer came.
        self.picture = shown(&self.asked, &self.found, Some(width), &self.locks);
        let mut lines = vec![self.head(width)];
        let room = height.saturating_sub(1);
        lines.extend(
            self.picture
                .fitted((width, room), self.colors, self.previous.as_ref()),
        );
        let text = lines.join("\x1b[K\r\n");
        screen.write(&format!("\x1b[H{text}\x1b[K\x1b[J"))
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
            let held = self.found.iter().filter(|lock| lock.holders().count() > 0);
            let waiting = |lock: &Inspected| lock.waiters.len() + lock.grants().count();
            let waiting: usize = self.found.iter().map(waiting).sum();
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

/// Waits until something may be there to do; whether a key was typed.
fn wait(signals: &Signals, timer: &Timer, answers: &Answers, screen: &Screen) -> Result<bool> {
    let stdin = io::stdin();
    let own = [signals.as_fd(), timer.as_fd(), answers.ready.as_fd()];
    let mut fds: Vec<PollFd> = own.into_iter().map(poll::readable).collect();
    if screen.has_keys() {
        fds.push(poll::readable(stdin.as_fd()));
    }
    if screen.is_behind() {
        fds.push(poll::writable(screen.as_fd()));
    }
    poll::wait(&mut fds, None).context("can't wait")?;
    let keys = fds.get(own.len()).filter(|_| screen.has_keys());
    Ok(keys.is_some_and(poll::was_ready))
}

/// What Redis answers.
struct Answers {
    questioner: Questioner,
    received: Receiver<Answer>,
    /// Readable once an answer has come.
    ready: Arc<Wakeup>,
}

/// What came first.
enum First {
    Answer(Answer),
    /// A signal that ends the wait for it.
    End(Exit),
}

impl Answers {
    fn start(client: Client, asked: Arc<Asked>, settings: &Settings) -> io::Result<Self> {
        let ready = Arc::new(Wakeup::new()?);
        let (answers, received) = channel();
        let notify = Arc::clone(&ready);
        let locks = settings.locks.clone();
        let questioner = Questioner::start(client, asked, locks, true, move |answer| {
            answers.send(answer).is_ok() && notify.wake().is_ok()
        })?;
        Ok(Self {
            questioner,
            received,
            ready,
        })
    }

    /// Asks, and waits for the answer or a signal.
    fn first(&self, signals: &Signals) -> Result<First> {
        self.questioner.ask();
        loop {
            if let Some(answer) = self.latest() {
                return Ok(First::Answer(answer));
            }
            let fds = [signals.as_fd(), self.ready.as_fd()];
            poll::wait(&mut fds.map(poll::readable), None).context("can't wait")?;
            while let Some(received) = signals.next()? {
                if let Some(exit) = end_by(received.signal) {
                    return Ok(First::End(exit));
                }
                if received.signal == SIGTSTP {
                    signals.suspend()?;
                }
            }
        }
    }

    fn latest(&self) -> Option<Answer> {
        self.ready.clear();
        self.received.try_iter().last()
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

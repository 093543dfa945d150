//! `bimetal status --watch` on a terminal: the health of the volumes, the stack as a tree, and the
//! bounds that matter, on one screen that is drawn anew every second.
//!
//! The server is asked on a thread of its own, so that the keys work while it does not answer. The
//! screen shows what the server has judged, and judges nothing itself.

mod app;
pub(crate) mod bounds;
mod detail;
mod draw;
mod history;
mod keys;
pub(crate) mod look;
mod overview;
pub(crate) mod rows;
#[cfg(test)]
mod tests;
mod tty;

use std::io::Read;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use bimetal_control::AskError;
use bimetal_rt::real_time::Signals;
use bimetal_rt::{Rt, UringOptions};
use futures_util::future::{Either, select};
use ratatui_core::terminal::Terminal;
use serde_json::{Value, json};

use self::app::{App, Next};
use self::keys::Key;
pub(crate) use self::look::Look;
use self::tty::Tty;
use crate::config::Config;
use crate::runtime;

/// Interval at which the server is asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Interval at which keys and answers are looked for, and the size of the terminal.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Number of key presses and answers that wait.
const WAITING_MAX: usize = 64;

/// Shows the screen until a key or a signal ends it.
///
/// # Errors
/// Errors of the terminal, and of the signals.
pub(crate) fn run(config: &Config, look: Look, is_verbose: bool) -> Result<()> {
    let rt = runtime::start_quietly(UringOptions {
        pool_bytes: 1 << 20,
        register: false,
        ..UringOptions::default()
    })?;
    // The signals are blocked before there are other threads, which would get them.
    let signals = Signals::termination(&rt).context("cannot set up signal handling")?;
    let (socket, file) = (config.server.control.clone(), config.path.clone());
    let answers = ask(socket, file).context("cannot start the thread that asks the server")?;
    let keys = read_keys().context("cannot start the thread that reads the keys")?;
    let tty = Tty::take_over().context("cannot take over the terminal")?;
    let mut terminal = Terminal::new(tty).context("cannot draw on the terminal")?;
    let mut app = App::new(look, is_verbose);
    rt.block_on(show(
        &rt,
        &signals,
        (&answers, &keys),
        &mut terminal,
        &mut app,
    ))
}

async fn show(
    rt: &Rt,
    signals: &Signals,
    (answers, keys): (&Receiver<Result<Value, String>>, &Receiver<Key>),
    terminal: &mut Terminal<Tty>,
    app: &mut App,
) -> Result<()> {
    let mut signal = pin!(signals.next());
    let mut is_stale = true;
    let mut size = terminal.size()?;
    loop {
        while let Ok(answer) = answers.try_recv() {
            app.answer(answer, rt.unix_seconds());
            is_stale = true;
        }
        // Without a terminal as standard input there are no keys, and a signal ends the screen.
        while let Ok(key) = keys.try_recv() {
            if app.key(key) == Next::Quit {
                return Ok(());
            }
            is_stale = true;
        }
        let size_now = terminal.size()?;
        if is_stale || size_now != size {
            size = size_now;
            is_stale = false;
            terminal.draw(|frame| {
                let area = frame.area();
                app.draw(frame.buffer_mut(), area);
            })?;
        }
        match select(signal.as_mut(), pin!(rt.sleep(LOOK_EVERY))).await {
            Either::Left((signal, _)) => {
                signal.context("cannot read signals")?;
                return Ok(());
            }
            Either::Right(_) => {}
        }
    }
}

/// Starts a thread that asks the server every second. It ends when nobody takes the answers.
fn ask(socket: PathBuf, file: PathBuf) -> std::io::Result<Receiver<Result<Value, String>>> {
    let (to, from) = sync_channel(WAITING_MAX);
    let ask = move || {
        loop {
            let answer = bimetal_control::ask(&socket, &json!({ "verb": "status" }));
            let answer = answer.map_err(|error| match error {
                AskError::NotConnected(_) => {
                    format!("no server is running for {}", file.display())
                }
                error => format!("the server of {} does not answer: {error}", file.display()),
            });
            if to.send(answer).is_err() {
                return;
            }
            bimetal_control::pause(ASK_EVERY);
        }
    };
    thread::Builder::new().name("ask".to_owned()).spawn(ask)?;
    Ok(from)
}

/// Starts a thread that reads keys until standard input ends.
fn read_keys() -> std::io::Result<Receiver<Key>> {
    let (to, from) = sync_channel(WAITING_MAX);
    let read = move || read_until_end(&to);
    thread::Builder::new().name("keys".to_owned()).spawn(read)?;
    Ok(from)
}

fn read_until_end(to: &SyncSender<Key>) {
    let mut bytes = [0; 64];
    loop {
        // An error of the terminal is its end.
        let Ok(count @ 1..) = std::io::stdin().lock().read(&mut bytes) else {
            return;
        };
        for key in keys::parse(&bytes[..count]) {
            if to.send(key).is_err() {
                return;
            }
        }
    }
}

//! The terminal as a screen: it is taken over at the start, and given back as it was at the end,
//! also by a panic. Nothing else writes to it meanwhile.
//!
//! The backends of ratatui would bring fifty packages with them for what is written here.

use std::io::{self, Write};
use std::sync::Mutex;

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

/// The other screen, without a cursor.
const TAKE_OVER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
/// The screen as it was, with a cursor.
const GIVE_BACK: &str = "\x1b[m\x1b[?25h\x1b[?1049l";
/// Size that is assumed if the terminal does not know its own.
const SIZE: Size = Size {
    width: 80,
    height: 24,
};

/// Settings of the terminal before it was taken over, while it is.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal while it is taken over. Dropping it gives the terminal back.
pub(super) struct Tty {
    out: io::Stdout,
}

impl Tty {
    /// Takes the terminal over: keys are read one at a time, and are not shown.
    ///
    /// # Errors
    /// Errors of the terminal.
    pub(super) fn take_over() -> io::Result<Tty> {
        let before = tcgetattr(io::stdout())?;
        let mut raw = before.clone();
        // Ctrl-C remains a signal. A program that is suspended would leave the screen as it is.
        raw.local_modes
            .remove(LocalModes::ICANON | LocalModes::ECHO);
        raw.special_codes[SpecialCodeIndex::VSUSP] = 0;
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        if let Ok(mut kept) = BEFORE.lock() {
            *kept = Some(before);
        }
        let tty = Tty { out: io::stdout() };
        tcsetattr(io::stdout(), OptionalActions::Now, &raw)?;
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            usual(panic);
        }));
        (&tty.out).write_all(TAKE_OVER.as_bytes())?;
        (&tty.out).flush()?;
        Ok(tty)
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, if it is taken over. Errors are not reported, because there is no place
/// left where they could be.
fn give_back() {
    let before = BEFORE.lock().ok().and_then(|mut kept| kept.take());
    if let Some(before) = before {
        let mut out = io::stdout();
        let _ = out.write_all(GIVE_BACK.as_bytes());
        let _ = out.flush();
        let _ = tcsetattr(io::stdout(), OptionalActions::Now, &before);
    }
}

impl Backend for Tty {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let text = sequences(content);
        self.out.write_all(text.as_bytes())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25l")
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25h")
    }

    /// The cursor is hidden, and where it is does not matter.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        write!(self.out, "\x1b[{};{}H", y + 1, x + 1)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        let sequence = match region {
            ClearType::All => "\x1b[2J",
            ClearType::AfterCursor => "\x1b[J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[K",
        };
        self.out.write_all(sequence.as_bytes())
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(&self.out)?;
        Ok(match (size.ws_col, size.ws_row) {
            (0, _) | (_, 0) => SIZE,
            (width, height) => Size { width, height },
        })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize {
            columns_rows: self.size()?,
            pixels: Size::default(),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Returns the sequences that draw cells: each is moved to, unless it follows the last one, and has
/// its style.
fn sequences<'a>(cells: impl Iterator<Item = (u16, u16, &'a Cell)>) -> String {
    let mut text = String::new();
    let mut next = None;
    let mut style = None;
    for (x, y, cell) in cells {
        if next != Some((x, y)) {
            text += &format!("\x1b[{};{}H", y + 1, x + 1);
        }
        next = Some((x + 1, y));
        let of_cell = (cell.fg, cell.modifier);
        if style != Some(of_cell) {
            text += &style_sequence(of_cell);
            style = Some(of_cell);
        }
        text += cell.symbol();
    }
    text + "\x1b[m"
}

fn style_sequence((colour, modifier): (Color, Modifier)) -> String {
    let mut sequence = "\x1b[0".to_owned();
    for (of, code) in [
        (Modifier::BOLD, ";1"),
        (Modifier::DIM, ";2"),
        (Modifier::REVERSED, ";7"),
    ] {
        if modifier.contains(of) {
            sequence += code;
        }
    }
    sequence += match colour {
        Color::Red => ";31",
        Color::Green => ";32",
        Color::Yellow => ";33",
        // The screen uses no others.
        _ => "",
    };
    sequence + "m"
}

#[cfg(test)]
mod tests {
    use ratatui_core::style::Style;

    use super::*;

    #[test]
    fn cells_that_follow_each_other_are_one_run() {
        let mut bold = Cell::new("b");
        bold.set_style(Style::new().fg(Color::Red).add_modifier(Modifier::BOLD));
        let plain = Cell::new("a");
        let cells = [
            (3, 1, &plain),
            (4, 1, &plain),
            (5, 1, &bold),
            (0, 2, &plain),
        ];
        assert_eq!(
            sequences(cells.into_iter()),
            "\x1b[2;4H\x1b[0maa\x1b[0;1;31mb\x1b[3;1H\x1b[0ma\x1b[m"
        );
        assert_eq!(sequences(std::iter::empty()), "\x1b[m");
    }
}

//! Fuzzes descriptions of columns. Each description must be refused with a reason, or be usable on
//! any text. The first line of the input is the description, and the other lines are the text.

#![no_main]

use bimetal_fuzz::File;
use bimetal_trace::{Columns, Options};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (description, lines) = text.split_once('\n').unwrap_or((text, ""));
    match description.parse::<Columns>() {
        Err(refused) => assert!(!refused.to_string().is_empty()),
        Ok(columns) => {
            assert!(description.contains("offset_"), "records without a place");
            let options = Options {
                columns: Some(columns),
                ..Options::default()
            };
            File::new("trace", lines.into(), options).records();
        }
    }
});

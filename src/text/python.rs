//! What Python does where templates can tell: JSON as `json.dumps` writes it, and dates as `strftime` does.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Deeper values are refused, since they would be written by recursion.
const MAX_DEPTH: usize = 100;

/// The filter `tojson` of transformers' templates: `json.dumps` with `ensure_ascii=False`.
///
/// # Errors
/// For values that are not JSON, or nested too deeply.
pub(super) fn tojson(state: &State, value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => match value.as_str() {
            Some(text) => Some(text.to_owned()),
            None => Some(" ".repeat(usize::try_from(value)?.min(64))),
        },
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    kwargs.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(invalid("tojson takes two separators")),
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let mut json = Json { state, out: String::new(), ensure_ascii, sort_keys, indent, item, key, charged: 0 };
    json.value(value, 0)?;
    Ok(json.out)
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

struct Json<'a> {
    state: &'a State<'a, 'a>,
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    key: String,
    /// Bytes of `out` paid for.
    charged: usize,
}

impl Json<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("tojson was given a value that is nested too deeply"));
        }
        if self.out.len() > self.charged {
            self.state.consume_fuel(((self.out.len() - self.charged) / 64) as u64 + 1)?;
            self.charged = self.out.len();
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let mut first = true;
                for item in value.try_iter()? {
                    self.separate('[', &mut first, depth);
                    self.value(&item, depth + 1)?;
                }
                self.close('[', ']', first, depth);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                let mut first = true;
                for key in keys {
                    self.separate('{', &mut first, depth);
                    match key.kind() {
                        ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                            self.out.push('"');
                            self.value(&key, depth + 1)?;
                            self.out.push('"');
                        }
                        kind => return Err(invalid(format!("tojson cannot write a key that is {kind}"))),
                    }
                    self.out.push_str(&self.key);
                    self.value(&value.get_item(&key)?, depth + 1)?;
                }
                self.close('{', '}', first, depth);
            }
            kind => return Err(invalid(format!("tojson cannot write a value that is {kind}"))),
        }
        Ok(())
    }

    fn separate(&mut self, open: char, first: &mut bool, depth: usize) {
        if std::mem::take(first) {
            self.out.push(open);
        } else {
            self.out.push_str(&self.item);
        }
        self.line(depth + 1);
    }

    fn close(&mut self, open: char, close: char, empty: bool, depth: usize) {
        if empty {
            self.out.push(open);
        } else {
            self.line(depth);
        }
        self.out.push(close);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c >= '\u{7f}') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A float as Python's `repr` writes it, with JSON's names for what is not a number.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    // Rust switches to exponents where Python does, and writes them without sign and zero.
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => text,
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// `seconds` since 1970 of the wall clock, as `strftime` writes them in the C locale. Unknown directives stay as they
/// are.
pub(super) fn strftime(format: &str, seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let day_of_year = days - days_before_year(year) + 1;
    let weekday = (days + 4).rem_euclid(7);
    let hour = second / 3600;
    let hour_12 = (hour + 11) % 12 + 1;

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let number = |value: i64, width: usize| {
            if unpadded { value.to_string() } else { format!("{value:0width$}") }
        };
        let text = match directive {
            Some('Y') => year.to_string(),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('e') if unpadded => day.to_string(),
            Some('e') => format!("{day:>2}"),
            Some('j') => number(day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour_12, 2),
            Some('M') => number(second / 60 % 60, 2),
            Some('S') => number(second % 60, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('B') => MONTHS[month as usize - 1].into(),
            Some('b' | 'h') => MONTHS[month as usize - 1][..3].into(),
            Some('A') => DAYS[weekday as usize].into(),
            Some('a') => DAYS[weekday as usize][..3].into(),
            Some('w') => weekday.to_string(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{:02}:{:02}", second / 60 % 60, second % 60),
            Some('%') => "%".into(),
            Some(other) => format!("%{}{other}", if unpadded { "-" } else { "" }),
            None => "%".into(),
        };
        out.push_str(&text);
    }
    out
}

/// Days from 1970-01-01 to the first of January of `year`.
fn days_before_year(year: i64) -> i64 {
    let before = year - 1;
    before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162
}

/// Year, month and day of a count of days since 1970-01-01, in the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Estimate the year from below, then walk.
    let mut year = 1970 + days.div_euclid(366);
    while days_before_year(year + 1) <= days {
        year += (days - days_before_year(year + 1)) / 366 + 1;
    }
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut day = days - days_before_year(year);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month as i64 + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let check = |seconds, format, expected: &str| assert_eq!(strftime(format, seconds), expected);
        check(0, "%Y-%m-%d %H:%M:%S %a %j", "1970-01-01 00:00:00 Thu 001");
        check(951_782_400, "%d %b %Y, %A", "29 Feb 2000, Tuesday");
        check(1_767_225_599, "%F %T %p %-I %y %B %e", "2025-12-31 23:59:59 PM 11 25 December 31");
        check(-1, "%F %T", "1969-12-31 23:59:59");
        check(4_107_542_400, "%F", "2100-03-01");
        check(0, "100% %Q %-d %% %", "100% %Q 1 % %");
    }

    #[test]
    fn floats() {
        for (value, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (-2.5e-10, "-2.5e-10"),
            (1e300, "1e+300"),
            (123456789012345.6, "123456789012345.6"),
        ] {
            assert_eq!(float(value), expected);
        }
    }
}

//! Numbers and tables for people.

/// Bytes in the largest unit that leaves a number of at least 1: `28.7 MiB`.
pub fn bytes(n: u64) -> String {
    let mut size = n as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if size < 1023.95 {
            break;
        }
        size /= 1024.0;
        unit = larger;
    }
    if unit == "B" { format!("{n} B") } else { format!("{size:.1} {unit}") }
}

/// A number with a comma between thousands: `49,152`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number in thousands, millions or billions: `134.5 M`.
pub fn large(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1} K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

/// Milliseconds, in seconds where they are many: `212 ms`, `3.25 s`.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        _ if ms < 10.0 => format!("{ms:.1} ms"),
        _ if ms < 1_000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.2} s", ms / 1e3),
    }
}

/// `n` things, with the word in the singular where there is one.
pub fn things(n: usize, word: &str) -> String {
    format!("{} {word}{}", count(n as u64), if n == 1 { "" } else { "s" })
}

/// A name from a file, without what a terminal takes for a command or a new line.
pub fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Lines of columns two spaces apart; columns in `right` are set flush right.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            let (before, after) = if right.contains(&column) { (&pad[..], "") } else { ("", &pad[..]) };
            line += &format!("  {before}{cell}{after}");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(1024 * 1024 - 1), "1.0 MiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(count(7), "7");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(large(134_515_008), "134.5 M");
        assert_eq!(things(1, "token"), "1 token");
        assert_eq!(things(2048, "token"), "2,048 tokens");
        assert_eq!(milliseconds(212.4), "212 ms");
        assert_eq!(milliseconds(61_000.0), "61.00 s");
    }

    #[test]
    fn tables_line_up() {
        let rows = [vec!["a".into(), "1".into()], vec!["bcd".into(), "23".into()]];
        assert_eq!(table(&rows, &[1]), "  a     1\n  bcd  23\n");
    }
}

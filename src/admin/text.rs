//! The Prometheus text exposition format 0.0.4.

use std::fmt::{Display, Write};

use crate::shard::{BUCKETS, Histogram};

/// Its media type.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text being written. Families come one after the other, each with all its samples.
#[derive(Debug, Default)]
pub struct Text {
    out: String,
    name: &'static str,
}

impl Text {
    /// Begins a family. `kind`: `counter`, `gauge` or `histogram`.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) -> &mut Self {
        self.name = name;
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self
    }

    /// One sample of the family begun last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.line("", labels, value)
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.out.push_str(self.name);
        self.out.push_str(suffix);
        for (at, (name, text)) in labels.iter().enumerate() {
            self.out.push_str(if at == 0 { "{" } else { "," });
            self.out.push_str(name);
            self.out.push_str("=\"");
            escape(&mut self.out, text);
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
        self
    }

    /// A whole histogram, in seconds.
    pub fn histogram(&mut self, histogram: &Histogram) {
        let mut sum = 0;
        for (bound, count) in BUCKETS.iter().zip(&histogram.counts) {
            sum += count;
            self.line("_bucket", &[("le", &seconds(*bound))], sum);
        }
        sum += histogram.counts.last().copied().unwrap_or_default();
        self.line("_bucket", &[("le", "+Inf")], sum);
        self.line("_sum", &[], seconds(histogram.sum));
        self.line("_count", &[], sum);
    }

    /// The whole text.
    pub fn finish(self) -> String {
        self.out
    }
}

/// Microseconds as seconds, without the noise of binary fractions.
fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    let short = text.trim_end_matches('0');
    short.strip_suffix('.').unwrap_or(short).to_owned()
}

/// A label's value: backslash, quote and line end are escaped.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let mut text = Text::default();
        text.family("a_total", "counter", "What.").sample(&[("x", "q\"\\\n"), ("y", "2")], 7);
        assert_eq!(
            text.finish(),
            "# HELP a_total What.\n# TYPE a_total counter\na_total{x=\"q\\\"\\\\\\n\",y=\"2\"} 7\n"
        );
    }

    #[test]
    fn a_histogram_is_cumulative_and_in_seconds() {
        let mut histogram = Histogram::default();
        for micros in [100, 101, 1_500_000, 99_000_000] {
            histogram.add(Duration::from_micros(micros));
        }
        let mut text = Text::default();
        text.family("h", "histogram", "H.").histogram(&histogram);
        let text = text.finish();
        for line in [
            "h_bucket{le=\"0.0001\"} 1",
            "h_bucket{le=\"0.00025\"} 2",
            "h_bucket{le=\"1\"} 2",
            "h_bucket{le=\"2.5\"} 3",
            "h_bucket{le=\"30\"} 3",
            "h_bucket{le=\"+Inf\"} 4",
            "h_sum 100.500201",
            "h_count 4",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}

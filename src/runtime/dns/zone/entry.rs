//! The entries of a zone file with the lines they begin in (RFC 1035 §5.1): comments, parentheses and quotes are
//! dealt with here, so that each record can be parsed, and complained of, by itself.

/// One entry: a record or a directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The line it begins in, from 1.
    pub line: usize,
    /// It begins with a blank: the owner is that of the entry before.
    pub blank: bool,
    /// Its items as written, quotes included.
    pub items: Vec<String>,
}

/// A place and what is wrong there.
pub(super) type Fault = (usize, String);

/// Takes a text apart. Entries that are broken are left out and complained of.
pub(super) fn split(text: &str) -> (Vec<Entry>, Vec<Fault>) {
    let mut splitter = Splitter { line: 1, ..Splitter::default() };
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' => splitter.end_of_line(),
            '\r' if chars.peek().is_none_or(|next| *next == '\n') => {}
            '"' => splitter.quote(),
            '\\' => {
                splitter.put(c);
                // Whatever it stands before has no meaning of its own (`\DDD` goes through digit by digit).
                if let Some(next) = chars.next_if(|next| *next != '\n') {
                    splitter.put(next);
                }
            }
            _ if splitter.quoted => splitter.put(c),
            ';' => while chars.next_if(|next| *next != '\n').is_some() {},
            '(' => splitter.open(),
            ')' => splitter.close(),
            c if c.is_whitespace() => splitter.blank(),
            c if c.is_control() => {
                splitter.fault(format!("the control character {} stands here", c.escape_default()))
            }
            c => splitter.put(c),
        }
    }
    splitter.finish()
}

#[derive(Default)]
struct Splitter {
    line: usize,
    depth: usize,
    quoted: bool,
    /// Where the innermost open parenthesis or quote began.
    opened: usize,
    item: Option<String>,
    entry: Option<Entry>,
    broken: bool,
    entries: Vec<Entry>,
    faults: Vec<Fault>,
}

impl Splitter {
    fn entry(&mut self) -> &mut Entry {
        let line = self.line;
        self.entry.get_or_insert_with(|| Entry { line, blank: false, items: Vec::new() })
    }

    fn put(&mut self, c: char) {
        self.entry();
        self.item.get_or_insert_default().push(c);
    }

    fn blank(&mut self) {
        if self.entry.is_none() {
            self.entry().blank = true;
        }
        self.end_of_item();
    }

    fn end_of_item(&mut self) {
        if let Some(item) = self.item.take() {
            self.entry().items.push(item);
        }
    }

    fn quote(&mut self) {
        if self.quoted {
            self.put('"');
            self.quoted = false;
            self.end_of_item();
        } else {
            self.end_of_item();
            self.put('"');
            self.quoted = true;
        }
    }

    fn open(&mut self) {
        self.end_of_item();
        if self.depth == 0 {
            self.opened = self.line;
        }
        self.entry();
        self.depth += 1;
    }

    fn close(&mut self) {
        self.end_of_item();
        match self.depth.checked_sub(1) {
            Some(depth) => self.depth = depth,
            None => self.fault("a ) without its (".to_owned()),
        }
    }

    fn fault(&mut self, what: String) {
        self.entry();
        if !self.broken {
            self.faults.push((self.line, what));
        }
        self.broken = true;
    }

    fn end_of_line(&mut self) {
        if self.quoted {
            self.fault("a quoted text does not end in its line: a \" is missing".to_owned());
            self.quoted = false;
        }
        self.end_of_item();
        if self.depth == 0 {
            self.end_of_entry();
        }
        self.line += 1;
    }

    fn end_of_entry(&mut self) {
        let entry = self.entry.take();
        let broken = std::mem::take(&mut self.broken);
        if let Some(entry) = entry.filter(|e| !broken && !e.items.is_empty()) {
            self.entries.push(entry);
        }
    }

    fn finish(mut self) -> (Vec<Entry>, Vec<Fault>) {
        self.end_of_line();
        if self.depth > 0 {
            self.faults.push((self.opened, "a ( without its )".to_owned()));
        }
        (self.entries, self.faults)
    }
}

//! Server-sent events as they come, in pieces of any size: pure.

/// One event, as it was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawEvent {
    /// Its number, if it has one.
    pub(crate) id: Option<String>,
    pub(crate) kind: String,
    pub(crate) data: String,
}

/// Puts events together.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// What has come of the line that is not at its end.
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed behind it ends no second line.
    returned: bool,
    event: RawEvent,
    /// Whether there is any data, be it empty.
    has_data: bool,
    size: usize,
}

/// An event is longer than the bound.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Parser {
    /// Takes what has come, and appends the events that are whole to `into`.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        longest: usize,
        into: &mut impl Extend<RawEvent>,
    ) -> Result<(), TooLong> {
        for byte in bytes {
            let after_return = std::mem::replace(&mut self.returned, *byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => into.extend(self.end_of_line()),
                other => {
                    self.size += 1;
                    if self.size > longest {
                        return Err(TooLong);
                    }
                    self.line.push(*other);
                }
            }
        }
        Ok(())
    }

    /// The event that this line ends, if it does.
    fn end_of_line(&mut self) -> Option<RawEvent> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            self.size = 0;
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let line = String::from_utf8_lossy(&line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.event.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.event.kind),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
                self.has_data = true;
            }
            // A comment, which keeps the connection alive, or something new.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ":\r\n\r\nid: 7-1\nevent:change\ndata: {\"a\":\ndata: 1}\n\n: alive\n\nid:7-2\r\ndata\r\n\r\nretry: 5\n\n";

    fn events() -> Vec<RawEvent> {
        let event = |id: &str, kind: &str, data: &str| RawEvent {
            id: Some(id.to_owned()),
            kind: kind.to_owned(),
            data: data.to_owned(),
        };
        vec![event("7-1", "change", "{\"a\":\n1}"), event("7-2", "", "")]
    }

    #[test]
    fn events_are_the_same_in_pieces_of_any_size() {
        for size in 1..=TEXT.len() {
            let (mut parser, mut found) = (Parser::default(), Vec::new());
            for piece in TEXT.as_bytes().chunks(size) {
                parser.push(piece, 1024, &mut found).unwrap();
            }
            assert_eq!(found, events(), "pieces of {size}");
        }
    }

    #[test]
    fn an_event_without_end_is_given_up() {
        let mut found = Vec::new();
        let mut parser = Parser::default();
        assert_eq!(parser.push(&[b'a'; 10], 10, &mut found), Ok(()));
        assert_eq!(parser.push(b"a", 10, &mut found), Err(TooLong));
        // What is over does not count.
        let mut parser = Parser::default();
        for _ in 0..100 {
            parser.push(b"data: 12\n\n", 10, &mut found).unwrap();
        }
        assert_eq!(found.len(), 100);
    }
}

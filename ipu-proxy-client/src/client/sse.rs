//! Parser of server-sent events in chunks of any size. It performs no I/O.

/// An event as it was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawEvent {
    /// Event id, if any.
    pub(crate) id: Option<String>,
    pub(crate) kind: String,
    pub(crate) data: String,
}

/// Incremental parser.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// Received part of the current line.
    line: Vec<u8>,
    /// True if the last byte was a carriage return: a following line feed ends no further line.
    after_return: bool,
    event: RawEvent,
    /// True if the event has a data field, which may be empty.
    has_data: bool,
    size: usize,
}

/// An event exceeds the maximum size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Parser {
    /// Parses a chunk and appends the complete events to `events`.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        max_size: usize,
        events: &mut impl Extend<RawEvent>,
    ) -> Result<(), TooLong> {
        for byte in bytes {
            let after_return = std::mem::replace(&mut self.after_return, *byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => events.extend(self.end_of_line()),
                other => {
                    self.size += 1;
                    if self.size > max_size {
                        return Err(TooLong);
                    }
                    self.line.push(*other);
                }
            }
        }
        Ok(())
    }

    /// Handles a complete line; returns the event if the line is empty and ends one.
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
            // A comment, which keeps the connection alive, or an unknown field.
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
    fn events_are_parsed_from_chunks_of_any_size() {
        for size in 1..=TEXT.len() {
            let (mut parser, mut parsed) = (Parser::default(), Vec::new());
            for chunk in TEXT.as_bytes().chunks(size) {
                parser.push(chunk, 1024, &mut parsed).unwrap();
            }
            assert_eq!(parsed, events(), "chunks of {size}");
        }
    }

    #[test]
    fn an_event_that_is_too_long_is_rejected() {
        let mut parsed = Vec::new();
        let mut parser = Parser::default();
        assert_eq!(parser.push(&[b'a'; 10], 10, &mut parsed), Ok(()));
        assert_eq!(parser.push(b"a", 10, &mut parsed), Err(TooLong));
        // Complete events do not count.
        let mut parser = Parser::default();
        for _ in 0..100 {
            parser.push(b"data: 12\n\n", 10, &mut parsed).unwrap();
        }
        assert_eq!(parsed.len(), 100);
    }
}

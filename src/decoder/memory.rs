//! The session memory: answers of earlier requests, which drafts are taken from. It never enters the cache.

use crate::{Error, Result};

/// Stands behind each answer, so that no match and no draft crosses it.
pub use crate::cpu::draft::SEPARATOR;
/// What the bytes of an exported memory begin with.
const MAGIC: [u8; 8] = *b"frmemo01";

/// Answers of earlier requests, the oldest first, each with [`SEPARATOR`] behind it; at most `capacity` tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    tokens: Vec<u32>,
    capacity: usize,
}

impl Memory {
    /// An empty memory for `capacity` tokens, separators included.
    pub fn new(capacity: usize) -> Memory {
        Memory { tokens: Vec::new(), capacity }
    }

    /// The tokens, with separators.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Keeps an answer, and forgets the oldest ones where there is no room. Of an answer that is too long its end is
    /// kept.
    pub fn remember(&mut self, answer: &[u32]) {
        let answer = &answer[answer.len().saturating_sub(self.capacity.saturating_sub(1))..];
        if answer.is_empty() {
            return;
        }
        let mut forgotten = 0;
        while self.tokens.len() - forgotten + answer.len() + 1 > self.capacity {
            let end = self.tokens[forgotten..].iter().position(|token| *token == SEPARATOR);
            forgotten += end.map_or(self.tokens.len() - forgotten, |end| end + 1);
        }
        self.tokens.drain(..forgotten);
        self.tokens.extend_from_slice(answer);
        self.tokens.push(SEPARATOR);
    }

    /// The same memory for `capacity` tokens; the newest answers are kept.
    pub fn resized(&self, capacity: usize) -> Memory {
        Memory::newest(&self.tokens, capacity)
    }

    /// The newest of the answers in `tokens`, separated, that `capacity` holds.
    fn newest(tokens: &[u32], capacity: usize) -> Memory {
        // What stands further in front would be forgotten again, an answer at a time.
        let last = &tokens[tokens.len().saturating_sub(capacity)..];
        let mut memory = Memory::new(capacity);
        last.split(|token| *token == SEPARATOR).for_each(|answer| memory.remember(answer));
        memory
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.tokens.clear();
    }

    /// The memory as bytes, for the model whose fingerprint is `model`.
    pub fn to_bytes(&self, model: u64) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(model.to_le_bytes());
        bytes.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes
    }

    /// A memory from the bytes of [`Memory::to_bytes`]. Where they hold more than `capacity` tokens, the newest
    /// answers are kept.
    ///
    /// # Errors
    /// [`Error::BadInput`] for bytes that are no memory, or that of another model.
    pub fn from_bytes(bytes: &[u8], model: u64, vocab_size: usize, capacity: usize) -> Result<Memory> {
        let refused = |why: &str| Error::BadInput(format!("this is not a memory that can be used: {why}"));
        let body = bytes.strip_prefix(&MAGIC).ok_or_else(|| refused("it was not exported by this engine"))?;
        let (found, body) = body.split_first_chunk::<8>().ok_or_else(|| refused("it is cut short; export it again"))?;
        if u64::from_le_bytes(*found) != model {
            return Err(refused("it was exported with another model; load that model, or start a new memory"));
        }
        if body.len() % 4 != 0 {
            return Err(refused("it is cut short; export it again"));
        }
        let tokens: Vec<u32> = bytemuck::pod_collect_to_vec(body);
        if tokens.iter().any(|token| *token != SEPARATOR && *token as usize >= vocab_size) {
            return Err(refused("it holds tokens outside the vocabulary; export it again"));
        }
        Ok(Memory::newest(&tokens, capacity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forgets_whole_answers_the_oldest_first() {
        let mut memory = Memory::new(8);
        memory.remember(&[1, 2]);
        memory.remember(&[3, 4]);
        memory.remember(&[5]);
        assert_eq!(memory.tokens(), [1, 2, SEPARATOR, 3, 4, SEPARATOR, 5, SEPARATOR]);
        memory.remember(&[6]);
        assert_eq!(memory.tokens(), [3, 4, SEPARATOR, 5, SEPARATOR, 6, SEPARATOR]);
        memory.remember(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(memory.tokens(), [3, 4, 5, 6, 7, 8, 9, SEPARATOR]);
    }

    #[test]
    fn what_does_not_fit_is_never_looked_at() {
        let mut large = Memory::new(100);
        (0..40).for_each(|token| large.remember(&[token]));
        assert_eq!(large.resized(5).tokens(), [38, SEPARATOR, 39, SEPARATOR]);
        assert_eq!(large.resized(1).tokens(), [0u32; 0]);
        // A file of 64 MiB, which answer by answer would take a quarter of a minute.
        let bytes =
            [&large.to_bytes(7)[..16], &[5u32, SEPARATOR].map(u32::to_le_bytes).concat().repeat(8 << 20)].concat();
        let memory = Memory::from_bytes(&bytes, 7, 50, 1000).unwrap();
        assert_eq!(memory.tokens(), [5, SEPARATOR].repeat(500));
    }

    proptest! {
        #[test]
        fn survives_its_bytes(answers in prop::collection::vec(prop::collection::vec(0u32..50, 0..9), 0..9)) {
            let mut memory = Memory::new(32);
            answers.iter().for_each(|answer| memory.remember(answer));
            prop_assert!(memory.tokens().len() <= 32);
            let again = Memory::from_bytes(&memory.to_bytes(7), 7, 50, 32).unwrap();
            prop_assert_eq!(&again, &memory);
            prop_assert!(Memory::from_bytes(&memory.to_bytes(7), 8, 50, 32).is_err());
        }

        #[test]
        fn any_bytes_are_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Memory::from_bytes(&bytes, 0, 10, 8);
            let _ = Memory::from_bytes(&[&MAGIC[..], &bytes].concat(), 0, 10, 8);
        }
    }
}

//! The merges of a vocabulary: read from a byte-level one, derived from the scores of a SentencePiece one.

use super::vocabulary::{Family, Kind, Vocabulary, damaged, quoted};
use crate::Result;

/// `(left, right)` in order of rank.
pub(super) type Merges = Vec<(String, String)>;

/// Deriving merges tries every cut of every token, which is quadratic in a token's length. Real vocabularies need
/// under 5 × 10⁷ steps; this bound keeps a hostile one from costing minutes.
const MAX_WORK: usize = 1 << 28;

/// Derived merges repeat the spelling of a token for each way to cut it; real vocabularies need under 10 MB.
const MAX_MERGE_BYTES: usize = 32 << 20;

/// The merges of `vocabulary`, each checked: both halves and the whole are tokens.
pub(super) fn merges(vocabulary: &Vocabulary) -> Result<Merges> {
    match vocabulary.family {
        Family::ByteLevel => vocabulary.merges.iter().map(|merge| parse(vocabulary, merge)).collect(),
        Family::SentencePiece => from_scores(vocabulary),
    }
}

fn parse(vocabulary: &Vocabulary, merge: &str) -> Result<(String, String)> {
    // The left half has at least one character, which may itself be a space.
    let first = merge.chars().next().map_or(0, char::len_utf8);
    let Some(space) = merge[first..].find(' ').map(|at| first + at).filter(|&at| at > 0 && at + 1 < merge.len()) else {
        return Err(damaged(format_args!("the merge {} does not name two tokens", quoted(merge))));
    };
    let (left, right) = (&merge[..space], &merge[space + 1..]);
    let whole = [left, right].concat();
    for token in [left, right, &whole] {
        if !vocabulary.ids.contains_key(token) {
            return Err(damaged(format_args!(
                "the merge {} needs the token {}, which is not there",
                quoted(merge),
                quoted(token)
            )));
        }
    }
    Ok((left.into(), right.into()))
}

/// Every way to cut a token into two tokens, the best-scored token first, as transformers' converter from
/// SentencePiece does it (`generate_merges`).
fn from_scores(vocabulary: &Vocabulary) -> Result<Merges> {
    // Only text is merged: control tokens are cut out of the text first, and bytes are what is left over.
    let id_of_text = |spelling: &str| {
        let id = *vocabulary.ids.get(spelling)?;
        matches!(vocabulary.kinds[id as usize], Kind::Normal | Kind::UserDefined).then_some(id)
    };
    let work: usize = vocabulary.tokens.iter().map(|token| token.len().saturating_mul(token.len())).sum();
    if work > MAX_WORK {
        return Err(damaged("its tokens are absurdly long"));
    }

    struct Cut<'a> {
        token: &'a str,
        at: usize,
        score: f32,
        /// Characters of the left half.
        left_chars: usize,
        right_chars: usize,
    }
    let mut cuts: Vec<Cut> = Vec::new();
    let mut bytes = 0;
    for (token, &score) in vocabulary.tokens.iter().zip(vocabulary.scores) {
        if id_of_text(token).is_none() {
            continue;
        }
        let n_chars = token.chars().count();
        let first = cuts.len();
        for (left_chars, (at, _)) in token.char_indices().enumerate().skip(1) {
            if id_of_text(&token[..at]).is_some() && id_of_text(&token[at..]).is_some() {
                cuts.push(Cut { token, at, score, left_chars, right_chars: n_chars - left_chars });
                bytes += token.len();
            }
        }
        if bytes > MAX_MERGE_BYTES {
            return Err(damaged("its tokens merge in absurdly many ways"));
        }
        cuts[first..].sort_by_key(|cut| (id_of_text(&cut.token[..cut.at]), id_of_text(&cut.token[cut.at..])));
    }
    // Stable, like the sort of the converter: equal entries stay in the order of the vocabulary.
    cuts.sort_by(|a, b| {
        let order = b.score.total_cmp(&a.score);
        order.then(b.left_chars.cmp(&a.left_chars)).then(b.right_chars.cmp(&a.right_chars))
    });
    Ok(cuts.iter().map(|cut| (cut.token[..cut.at].to_owned(), cut.token[cut.at..].to_owned())).collect())
}

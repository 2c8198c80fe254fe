//! Twin of the `accept` kernel: the path of a draft tree that the model agrees with. The twin of its counters is
//! [`OrderCounters::update`](super::draft::OrderCounters::update).

/// Walks from node 0 to the child whose token is its parent's prediction, as far as there is one. Answers the path's
/// nodes, node 0 first, and the tokens it gives: those of the drafted nodes, and behind them the bonus token.
///
/// `tokens` and `predictions` are per node, and so is `parents`, whose entries are lower than their node.
pub fn accept(tokens: &[u32], parents: &[u32], predictions: &[u32]) -> (Vec<usize>, Vec<u32>) {
    let mut path = vec![0];
    let mut given = Vec::new();
    for node in 1..tokens.len() {
        let last = path[path.len() - 1];
        if parents[node] as usize == last && predictions[last] == tokens[node] {
            path.push(node);
            given.push(tokens[node]);
        }
    }
    given.extend(predictions.get(path[path.len() - 1]));
    (path, given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_path_follows_the_predictions(
            nodes in prop::collection::vec((any::<prop::sample::Index>(), 0u32..3, 0u32..3), 1..32),
        ) {
            let parents: Vec<u32> =
                nodes.iter().enumerate().map(|(i, (parent, ..))| parent.index(i.max(1)) as u32).collect();
            let tokens: Vec<u32> = nodes.iter().map(|(_, token, _)| *token).collect();
            let predictions: Vec<u32> = nodes.iter().map(|(.., prediction)| *prediction).collect();
            let (path, given) = accept(&tokens, &parents, &predictions);
            prop_assert_eq!(path.len(), given.len());
            for (pair, token) in path.windows(2).zip(&given) {
                prop_assert_eq!(parents[pair[1]] as usize, pair[0]);
                prop_assert_eq!(predictions[pair[0]], *token);
            }
            // Nothing more could have been accepted.
            let last = path[path.len() - 1];
            let missed = (last + 1..tokens.len())
                .any(|node| parents[node] as usize == last && tokens[node] == predictions[last]);
            prop_assert!(!missed);
            prop_assert_eq!(given.last(), Some(&predictions[last]));
        }
    }
}

//! Random valid graphs over all operations: they verify, and what is changed in their text does no harm.

use kiln_surface::arguments::arguments;
use kiln_surface::infer;

use super::*;

/// A valid graph of the named operations, where an operation reads what is there before new inputs.
fn valid_graph(names: &[&str], rng: &mut Rng) -> Graph {
    let mut graph = Graph::default();
    for name in names {
        let case = arguments(name, rng.below(1 << 30) as u64).unwrap_or_else(|| panic!("no case for {name}"));
        let (mut op, mut prims, mut ids) = (case.op, Vec::new(), Vec::new());
        if let Op::q_matmul { lhs, rhs } = &op {
            prims = vec![*lhs, *rhs];
        }
        for (k, input) in case.inputs.iter().enumerate() {
            let kind = match input.meta.dtype {
                DType::Bool(_) => Kind::Bool,
                DType::QFloat(_) => Kind::Quantized,
                dtype if dtype.is_float() => Kind::Float,
                _ => Kind::Int,
            };
            assert!(
                prims.get(k).is_none_or(|prim| (kind == Kind::Float) == matches!(prim, PrimId::Float(_)))
            );
            let same = |value: &ValueInfo| value.meta == input.meta && value.kind == kind;
            let there = graph.values.iter().position(same);
            ids.push(ValueId(there.unwrap_or(graph.values.len()) as u32));
            if there.is_none() {
                graph.values.push(ValueInfo { meta: input.meta.clone(), kind, def: Def::Input });
            }
        }
        op.map_inputs(&mut |value| ids[value.0 as usize]);
        op.scalars(&mut |slot| graph.scalars = graph.scalars.max(slot.index + 1));
        graph.draws = graph.draws.max(op.draw().map_or(0, |draw| draw.index + 1));
        let metas = infer(&op, &|value| &graph.value(value).meta).unwrap();
        let node = graph.nodes.len() as u32;
        let mut outputs = SmallVec::new();
        for (output, (meta, &kind)) in metas.into_iter().zip(op.outputs()).enumerate() {
            outputs.push(ValueId(graph.values.len() as u32));
            graph.values.push(ValueInfo { meta, kind, def: Def::Node { node, output: output as u32 } });
        }
        graph.nodes.push(Node { op, outputs });
    }
    graph.outputs = (0..graph.values.len() as u32).filter(|_| rng.flag()).map(ValueId).collect();
    graph
}

fn some_names(rng: &mut Rng) -> Vec<&'static str> {
    (0..rng.between(1, 12)).map(|_| rng.pick(Op::NAMES)).collect()
}

#[test]
fn valid_graphs_verify_and_round_trip() {
    let mut rng = Rng::new(3);
    for name in Op::NAMES {
        for _ in 0..3 {
            let graph = valid_graph(&[name], &mut rng);
            assert_eq!(graph.verify(), Ok(()), "{graph}");
            assert_round_trip(&graph);
        }
    }
    for _ in 0..100 {
        let graph = valid_graph(&some_names(&mut rng), &mut rng);
        assert_eq!(graph.verify(), Ok(()), "{graph}");
        assert_round_trip(&graph);
    }
}

#[test]
fn no_change_of_a_valid_graph_panics() {
    let mut rng = Rng::new(6);
    for _ in 0..3000 {
        let graph = valid_graph(&some_names(&mut rng), &mut rng);
        mutate(&graph, &mut rng);
    }
}

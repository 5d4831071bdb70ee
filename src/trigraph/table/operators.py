"""The operator table: the single definition of every operator.

Each :class:`Definition` describes one differentiable operator: its inputs and outputs with symbolic shapes, its
graph, its attributes, the polynomial degree of every input, its kinks and its operation counts. Argument
checks and their messages, signatures and docstrings, f2py shims, the case generator, finite differences, the
benchmark's roofline, the type stub and the tables of the documentation are derived from it.

A definition `X` gives three operators: `X_fwd`, its vector-Jacobian product `X_bwd`, and `X_bwd2`, the
vector-Jacobian product of `X_bwd`. `X_bwd3`, the vector-Jacobian product of `X_bwd2`, follows from these three. This
module uses only the standard library, because the build runs it before the package exists.
"""

from collections import namedtuple
from dataclasses import replace
from functools import cache
from typing import Any

from trigraph.table.grammar import Array, Attribute, Bwd2Restriction, Definition, DocstringExample, Kink, Operator

F_IN = Attribute("f_in", "Features per source node.")
F_OUT = Attribute("f_out", "Features per destination node; the fastest index of the kernel.")
ATHENA = "athena's GNO layer and packing (kernel of Li et al., 2020, arXiv:2003.03485, with one hidden layer)."
DIMENET = "Gasteiger et al., DimeNet++ (2020), arXiv:2011.14115; triplet sum as in pylibcugraphops.dimenet."
GAT = "Velickovic et al. (2018), arXiv:1710.10903; parameters as in pylibcugraphops' mha_gat_n2n."
WEIGHTED = "Weighted sum, mean, minimum and maximum over in-edges, as in pylibcugraphops' agg_weighted_n2n."
GEMNET = (
    "Gasteiger et al., GemNet-OC (2022), arXiv:2204.02782; compatible with fairchem's BasisEmbedding and "
    "EfficientInteractionBilinear, but ragged instead of padded."
)
ACTIVATIONS = ("linear", "ReLU", "LeakyReLU", "ELU", "sigmoid", "tanh")
# Largest sizes that the table of Bessel zeros and the powers in the envelope support.
BESSEL_MAXIMA = (("num_radial", 16), ("num_spherical", 8), ("envelope_exponent", 16))
HEADS = "num_heads*dim_head"
# Graph for examples: three edges between two nodes.
SMALL_GRAPH = "graph = trigraph.CSC.from_coo(np.array([0, 1, 1]), np.array([1, 0, 1]))"
BILINEAR_TERMS = (
    "(num_triplets*num_spherical*emb_in+num_edges*num_spherical*interm*emb_in+num_outputs*interm*emb_in*emb_out)"
)
RAD_BASIS = Array("rad_basis", "num_edges num_radial", "Radial basis of each edge.", 1)
SPHERICAL_WEIGHT = Array("weight", "num_radial num_spherical interm", "Weight of BasisEmbedding.", 1)
PARAMS = "hidden*(d+1+f_out*f_in)+f_out*f_in"
PARAMS_DOC = "U (H,d) | b_u (H) | V (F,H) | b_v (F), F = f_in*f_out, each block column-major."
COORDS = Array("coords", "num_edges d", "Coordinates xi of each edge, in the caller's unit of length.", 1)
FEATURES = Array("features", "num_src_nodes f_in", "Features h of each source node.", 1)
KERNEL_SHAPE = "num_edges f_in*f_out"

RADIAL_TERMS = "num_edges*num_radial*(num_spherical+1)"
SUM_TERMS = "num_edges*(num_spherical*num_spherical*n_emb+n_mid*(num_spherical*num_radial+num_spherical*n_emb))"


def _format_operation_counts(terms: str, fwd: int, bwd: int, bwd2: int) -> tuple[str, str, str]:
    """Return expressions for the operation counts of fwd, bwd and bwd2, given the counts per term."""
    return f"{fwd}*{terms}", f"{bwd}*{terms}", f"{bwd2}*{terms}"


DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        name="gno_kernel",
        family="gno",
        summary="Per-edge kernel of a graph neural operator: a two-layer network of the edge's coordinates.",
        formulas=(
            "kernel = V a + b_v, a = relu(z), z = U xi + b_u, where xi = coords",
            "mask = not z <= 0; s = mask (V^T g); coords = U^T s; "
            "params: U: sum s xi^T, b_u: sum s, V: sum g a^T, b_v: sum g",
            "dots from gg_params: a_dot = mask (U xi_dot + U_dot xi + b_u_dot), s_dot = mask (V_dot^T g); "
            "grad_kernel = V a_dot + V_dot a + b_v_dot; coords = U_dot^T s + U^T s_dot; "
            "params: V: sum g a_dot^T, U: sum s xi_dot^T + sum s_dot xi^T, b_u: sum s_dot, b_v: 0",
        ),
        source=ATHENA,
        inputs=(COORDS, Array("params", PARAMS, PARAMS_DOC, 2)),
        outputs=(Array("kernel", KERNEL_SHAPE, "Column-major (f_out, f_in) matrix of each edge."),),
        attributes=(F_IN, F_OUT),
        kinks=(Kink("gno_kernel_kinks", "coords"),),
        terms="num_edges+hidden+f_out*f_in+d",
        operations=(
            "2*num_edges*hidden*(d+f_in*f_out)",
            "2*num_edges*hidden*(3*d+2*f_in*f_out)",
            "2*num_edges*hidden*(8*d+5*f_in*f_out)",
        ),
        example=DocstringExample(
            (
                "coords = np.array([[1.0, 2.0], [0.0, 4.0]])",
                "params = np.array([0.5, -0.5, 1.0, 2.0, 3.0])  # U, b_u, V, b_v",
            ),
            "coords, params, 1, 1",
            {
                "fwd": "array([[4.],\n       [3.]])",
                "bwd": "array([[ 4., -4.],\n       [ 0.,  0.]])",
                "bwd2": "array([ 8., 32.,  0., -6.,  0.])",
                "bwd3": "array([ 8., 32.,  0., -6.,  0.])",
                "torch": "tensor([[ 1., -1.],\n        [ 0.,  0.]])",
            },
        ),
    ),
    Definition(
        name="gno_aggregate",
        family="gno",
        summary="Sum over in-edges of the edge's kernel matrix times the source's features.",
        formulas=(
            "message_i = sum over e into i of K_e h_src(e), K_e = kernel[e] as (f_out, f_in) column-major",
            "features_j = sum over e out of j of K_e^T g_dst(e); kernel_e = g_dst(e) h_src(e)^T",
            "bilinear, by polarisation: grad_message = fwd(gg_features, kernel) + fwd(features, gg_kernel); "
            "features = sum K_dot_e^T g_dst(e); kernel_e = g_dst(e) h_dot_src(e)^T",
        ),
        source=ATHENA,
        inputs=(FEATURES, Array("kernel", KERNEL_SHAPE, "Column-major (f_out, f_in) matrix of each edge row.", 1)),
        outputs=(Array("message", "num_dst_nodes f_out", "Sum of messages at each destination."),),
        attributes=(F_IN, F_OUT),
        graph="csc",
        terms="num_positions*f_in+f_out",
        operations=("2*num_positions*f_in*f_out", "4*num_positions*f_in*f_out", "8*num_positions*f_in*f_out"),
        example=DocstringExample(
            (
                SMALL_GRAPH,
                "x = np.array([[1.0], [2.0]])",
                "kernel = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]])",
            ),
            "x, kernel, graph, 1, 2",
            {
                "fwd": "array([[0., 2.],\n       [5., 6.]])",
                "bwd": "array([[ 5.],\n       [30.]])",
                "bwd2": "array([[ 5.,  6.],\n       [ 0.,  8.],\n       [20., 24.]])",
                "bwd3": "array([[ 5.,  6.],\n       [ 0.,  8.],\n       [20., 24.]])",
                "torch": "tensor([[1.],\n        [6.]])",
            },
        ),
    ),
    Definition(
        name="gno_message",
        family="gno",
        summary="Kernel and aggregation in one step; the (num_edges, f_out*f_in) kernel is never stored.",
        formulas=(
            "message = gno_aggregate_fwd(features, gno_kernel_fwd(coords, params))",
            "features = gno_aggregate_bwd(g).features; coords, params = gno_kernel_bwd(g_dst(e) h_src(e)^T)",
            "with K_dot the grad_kernel of gno_kernel_bwd2 at g h^T: grad_message = fwd(h_dot, K) + fwd(h, K_dot); "
            "features = gno_aggregate_bwd(g; K_dot).features; "
            "coords, params = gno_kernel_bwd2 at g h^T + gno_kernel_bwd at g h_dot^T",
        ),
        source=ATHENA,
        inputs=(FEATURES, COORDS, Array("params", PARAMS, PARAMS_DOC, 2)),
        outputs=(Array("message", "num_dst_nodes f_out", "Sum of messages at each destination."),),
        attributes=(F_IN, F_OUT),
        graph="csc",
        kinks=(Kink("gno_message_kinks", "coords"),),
        terms="num_positions*f_in+hidden*f_in*f_out+d",
        operations=(
            "2*num_positions*hidden*(d+f_in)+2*num_dst_nodes*(hidden+1)*f_in*f_out",
            "2*num_positions*hidden*(3*d+3*f_in)+4*num_dst_nodes*(hidden+1)*f_in*f_out",
            "2*num_positions*hidden*(8*d+8*f_in)+10*num_dst_nodes*(hidden+1)*f_in*f_out",
        ),
        example=DocstringExample(
            (
                SMALL_GRAPH,
                "x, coords = np.array([[1.0], [2.0]]), np.array([[1.0], [2.0], [-1.0]])",
                "params = np.array([1.0, 0.5, 2.0, 3.0])  # U, b_u, V, b_v",
            ),
            "x, coords, params, graph, 1, 1",
            {
                "fwd": "array([[16.],\n       [12.]])",
                "bwd": "array([[ 72.],\n       [164.]])",
                "bwd2": "array([280., 152., 178., 124.])",
                "bwd3": "array([280., 152., 178., 124.])",
                "torch": "tensor([[ 6.],\n        [11.]])",
            },
        ),
        layers=("GNOLayer",),
    ),
    Definition(
        name="radial_basis",
        family="dimenet",
        summary="Radial basis of DimeNet++: sines for the edges, spherical Bessel functions for the triplets.",
        formulas=(
            "x = dist; q = envelope_exponent + 1; env = 1/x - (q+1)(q+2)/2 x^(q-1) + q(q+2) x^q - q(q+1)/2 x^(q+1) "
            "for x < 1, else 0; rbf[k] = env sin(freq_k x); sbf_rad[l*R+k] = env N_lk j_l(z_lk x)",
            "dist = sum grad_rbf drbf/dx + sum grad_sbf_rad dsbf_rad/dx; freq_k = sum grad_rbf env x cos(freq_k x)",
            "derivatives of sum gg_dist dist + sum gg_freq freq, j_l'' by the Bessel equation",
        ),
        source=DIMENET,
        inputs=(
            Array(
                "dist",
                "num_edges",
                "Distance of each edge divided by the cutoff, > 0. For other values, functions of NumPy arrays raise "
                "ValueError; for other arrays, the edge's results and the gradient of freq are NaN.",
                sample="unit interval",
                column=True,
                positive=True,
            ),
            Array("freq", "num_radial", "Frequencies of the sines; R = len(freq).", sample="frequency"),
        ),
        outputs=(
            Array("rbf", "num_edges num_radial", "Radial basis of each edge."),
            Array("sbf_rad", "num_edges num_spherical*num_radial", "Radial part of the spherical basis of each edge."),
        ),
        attributes=(
            Attribute("num_spherical", "Spherical basis functions S.", 7),
            Attribute("envelope_exponent", "Exponent p of the smooth cutoff.", 5),
        ),
        kinks=(Kink("radial_basis_kinks", "dist"),),
        maxima=BESSEL_MAXIMA,
        terms="num_edges+num_radial*(num_spherical+1)",
        operations=_format_operation_counts(RADIAL_TERMS, 30, 40, 60),
        example=DocstringExample(
            ("dist, freq = np.array([0.25, 0.6]), np.pi * np.array([1.0, 2.0])",),
            "dist, freq, 2",
            {
                "fwd": "array([[ 2.81647226,  3.98309326],\n       [ 1.08516411, -0.6706683 ]])",
                "bwd": "array([-6772.52670754,   -94.47547956])",
                "bwd2": "array([-0.94763288, -2.57627019])",
                "bwd3": "array([-0.94763288, -2.57627019])",
                "torch": "tensor([-18.9802,  -8.8640])",
            },
        ),
        layers=("RadialBasis", "DimeNetPlusPlus"),
    ),
    Definition(
        name="agg_edge_to_edge",
        family="dimenet",
        summary="Edge-to-edge aggregation of DimeNet++: triplets k -> j -> i weighted by a basis in their angle.",
        formulas=(
            "Y_l = sqrt((2l+1)/4pi) P_l(u_e.u_f); b[m] = sum_{l,n} sbf_rad[f,l*R+n] Y_l W1[l*R+n,m]; w = W2 b; "
            "out[e,c] = sum over f into src(e) of embedding[f,c] w[c]",
            "the gradient of sum grad_out out, vec included (through u = vec/norm(vec))",
            "the gradient of the derivative of sum grad_out out along (gg_vec, gg_sbf_rad, gg_embedding, gg_weights)",
        ),
        source=DIMENET,
        inputs=(
            Array(
                "vec",
                "num_edges 3",
                "Vector of each edge, not zero. Only its direction matters, and its gradient is proportional to "
                "1/norm(vec).",
            ),
            Array(
                "sbf_rad",
                "num_edges num_spherical*num_radial",
                "Radial part of the spherical basis of each edge, the `sbf_rad` of `radial_basis`.",
                1,
            ),
            Array("embedding", "num_edges n_emb", "Embedding of each edge.", 1),
            Array("weights", "num_spherical*num_radial+n_emb n_mid", "Rows of W1 (S*R, M), then of W2 (C, M).", 2),
        ),
        outputs=(Array("out", "num_edges n_emb", "Aggregated embedding of each edge."),),
        attributes=(
            Attribute("num_spherical", "Spherical basis functions S.", 7),
            Attribute("num_radial", "Radial basis functions R.", 6),
            Attribute(
                "exclude",
                "Edges left out: every f = (k->j) with k == i (node), only the reverse edge (edge), or none (None).",
                "node",
                (None, "node", "edge"),
                (("edge", "require_reverse"),),
            ),
        ),
        graph="edges",
        maxima=BESSEL_MAXIMA[:2],
        terms="num_edges*num_spherical*num_radial*n_mid+n_emb*n_mid",
        operations=_format_operation_counts(SUM_TERMS, 4, 12, 32),
        restrictions=(
            Bwd2Restriction(
                "bwd2_grad",
                ("gg_sbf_rad", "gg_embedding", "vec", "sbf_rad", "embedding", "weights"),
                ("grad_out",),
                "fwd(sbf_rad := gg_sbf_rad) + fwd(embedding := gg_embedding), vec constant",
            ),
            Bwd2Restriction(
                "bwd2_main",
                ("gg_sbf_rad", "gg_embedding", "grad_out", "vec", "sbf_rad", "embedding", "weights"),
                ("sbf_rad", "embedding", "weights"),
                "sbf_rad: bwd_sbf_rad(embedding := gg_embedding); embedding: bwd_embedding(sbf_rad := gg_sbf_rad); "
                "weights: bwd_weights(sbf_rad := gg_sbf_rad) + bwd_weights(embedding := gg_embedding), vec constant",
            ),
        ),
        example=DocstringExample(
            (
                "graph = trigraph.EdgeGraph(np.array([0, 1, 2]), np.array([1, 2, 0]), 3)",
                "vec = np.array([[2.0, 1.0, 0.0], [2.0, 2.0, 2.0], [1.0, 2.0, 0.0]])",
                "basis, x, w = np.ones((3, 2)), np.ones((3, 1)), np.ones((3, 1))",
            ),
            "vec, basis, x, w, graph, 2, 1",
            {
                "fwd": "array([[0.6729768 ],\n       [0.66056467],\n       [0.66056467]])",
                "bwd": (
                    "array([[-0.0561251 ,  0.1122502 ,  0.08333461],\n"
                    "       [ 0.04166731,  0.04166731, -0.08333461],\n"
                    "       [ 0.1122502 , -0.0561251 ,  0.08333461]])"
                ),
                "bwd2": "array([[ 0.       ],\n       [-0.2245004],\n       [-0.2245004]])",
                "bwd2_grad": "array([[0.6729768 ],\n       [0.66056467],\n       [0.66056467]])",
                "bwd2_main": "array([[0.56252696],\n       [0.76306219],\n       [1.32558914]])",
                "bwd3": "array([[ 0.       ],\n       [-0.2245004],\n       [-0.2245004]])",
                "torch": (
                    "tensor([[-0.0839,  0.1677,  0.1262],\n"
                    "        [ 0.0631,  0.0631, -0.1262],\n"
                    "        [ 0.1677, -0.0839,  0.1262]])"
                ),
            },
        ),
        layers=("InteractionBlock", "DimeNetPlusPlus"),
    ),
    Definition(
        name="mha_gat_n2n",
        family="gat",
        summary="Multi-head graph attention from source to destination nodes.",
        formulas=(
            "score = a_s.x_src + a_d.x_dst (+ a_e.f_e) per head, a = attention_weights; logit = activation(score); "
            "alpha = softmax of logit over the in-edges of a destination; output_i = sum alpha x_src, heads "
            "concatenated or averaged; softmax_scores = (logit, alpha)",
            "u = g.x_src; grad_logit = alpha (u - sum alpha u); grad_score = grad_logit activation'(score); "
            "src: sum alpha g + a_s sum grad_score; dst: a_d sum grad_score; edge: a_e grad_score; "
            "weights: sum grad_score x; activation'(0) is the negative side's value",
            "the gradient of the derivative of sum grad_output output along (gg_src, gg_dst, gg_weights, gg_edge); "
            "activation''(0), which is 1 on ELU's negative side and 0 on the other, is the negative side's value too",
        ),
        source=GAT,
        inputs=(
            Array(
                "src_embedding",
                f"num_src_nodes {HEADS}",
                "Embedding of each source node, heads one after the other.",
                half=True,
            ),
            Array("dst_embedding", f"num_dst_nodes {HEADS}", "Embedding of each destination node.", half=True),
            Array(
                "attention_weights",
                f"(2+has_edge_embedding)*{HEADS}",
                "Weights for the source, the destination and, if there are edge embeddings, the edge.",
            ),
            Array(
                "edge_embedding",
                f"num_edges {HEADS}",
                "Embedding of each edge row, or None.",
                optional=True,
                keyword=True,
                half=True,
            ),
        ),
        outputs=(
            Array(
                "output_embedding",
                "num_dst_nodes num_heads**concat_heads*dim_head",
                "Heads concatenated, or their mean.",
                half=True,
            ),
        ),
        auxiliary=(
            Array(
                "softmax_scores",
                "2 num_heads num_positions",
                "Scores before and after the softmax, by CSC position; None unless return_softmax_scores is True.",
                when="return_softmax_scores",
            ),
        ),
        given_back=("softmax_scores",),
        largest_step=2.0**-4,  # third derivatives of a softmax are small
        attributes=(
            Attribute("num_heads", "Attention heads."),
            Attribute("concat_heads", "Concatenate the heads (True), or average them.", True, (False, True)),
            Attribute("activation", "Activation function of the scores.", "LeakyReLU", ACTIVATIONS),
            Attribute("negative_slope", "Slope of LeakyReLU below zero.", 0.2, real=True),
            Attribute("return_softmax_scores", "Also return softmax_scores.", False, (False, True), requests=True),
        ),
        graph="csc",
        kinks=(Kink("mha_gat_n2n_kinks", "src_embedding", "indices"),),
        terms="num_positions+3*num_heads*dim_head+num_src_nodes",
        operations=_format_operation_counts(
            f"(num_positions*({HEADS}+4*num_heads)+{HEADS}*(num_src_nodes+num_dst_nodes))", 2, 6, 20
        ),
        settings=(
            {"activation": "LeakyReLU", "edge_embedding": None},
            {"activation": "ELU"},
            {"activation": "linear", "concat_heads": False},
            {"activation": "ReLU", "concat_heads": False, "edge_embedding": None},
            {"activation": "sigmoid", "edge_embedding": None},
            {"activation": "LeakyReLU", "concat_heads": False, "negative_slope": 0.01},
            {"activation": "tanh", "concat_heads": False},
        ),
        example=DocstringExample(
            (
                SMALL_GRAPH,
                "x, w = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([-1.0, 1.0, 0.0, -0.25])",
            ),
            "x, x, w, graph, 1",
            {
                "fwd": "array([[3.        , 5.        ],\n       [2.37994896, 4.06992344]])",
                "bwd": "array([[ 1.46384023,  0.53578481],\n       [ 1.01212746, 11.4381199 ]])",
                "bwd2": "array([35.06719747, 92.97673916,  2.67720301,  4.46200501])",
                "bwd3": "array([35.06719747, 92.97673916,  2.67720301,  4.46200501])",
                "torch": "tensor([[0.5239, 0.0961],\n        [0.6204, 2.5456]])",
            },
        ),
        layers=("GATConv",),
    ),
    Definition(
        name="agg_weighted_n2n",
        family="weighted",
        summary="Sum, mean, minimum or maximum over in-edges of the edge's weight times the source's embedding.",
        formulas=(
            "message_e = w_e x_src(e); output_i = sum, minimum or maximum over e into i, or sum / node_degree with "
            "node_degree = sum w_e (mean_by='weight') or the number of edges; location = CSC position of the extremum",
            "sum: x_j = sum w_e g_dst(e), w_e = g_dst(e).x_src(e); mean: g / node_degree, and by weight "
            "w_e = g_dst(e).(x_src(e) - output_dst(e)) / node_degree; min, max: of the edges at the locations alone",
            "the gradient of the derivative of sum grad_output output along (gg_embedding, gg_edge_weight)",
        ),
        source=WEIGHTED,
        inputs=(
            Array("embedding", "num_src_nodes dim", "Embedding of each source node.", 1),
            Array(
                "edge_weight",
                "num_edges",
                "Weight of each edge row; None means ones.",
                sample="positive",
                optional=True,
            ),
        ),
        outputs=(
            Array("output_embedding", "num_dst_nodes dim", "Aggregated embedding; 0 for a node without in-edges."),
        ),
        auxiliary=(
            Array("node_degree", "num_dst_nodes", "Denominator of the mean; None unless op is mean.", when="op==1"),
            Array(
                "output_extrema_location",
                "num_dst_nodes dim",
                "CSC position of the extremum (the first NaN if there is one, the lowest position on ties); -1 without "
                "in-edges; None for sum and mean.",
                index=True,
                when="op>1",
            ),
        ),
        given_back=("output_embedding", "node_degree", "output_extrema_location"),
        given_back_when=(("output_embedding", "op==1"),),
        linear_when="op==0 or (op==1 and mean_by==1)",
        attributes=(
            Attribute("op", "Aggregation.", "sum", ("sum", "mean", "min", "max")),
            Attribute(
                "mean_by",
                "Divisor of the mean: sum of weights, or number of edges.",
                "weight",
                ("weight", "count"),
            ),
        ),
        graph="csc",
        kinks=(Kink("agg_weighted_n2n_kinks", "embedding", "indices"),),
        terms="num_positions+dim",
        operations=("2*num_positions*dim", "4*num_positions*dim", "8*num_positions*dim"),
        settings=(
            {"op": "sum"},
            {"op": "mean", "mean_by": "weight"},
            {"op": "max"},
            {"op": "min"},
            {"op": "mean", "mean_by": "count"},
            {"op": "sum", "edge_weight": None},
            {"op": "mean", "mean_by": "weight", "edge_weight": None},
            {"op": "max", "edge_weight": None},
        ),
        example=DocstringExample(
            (
                SMALL_GRAPH,
                "x, w = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0.5, 1.0, 2.0])",
            ),
            "x, w, graph",
            {
                "fwd": "array([[3. , 4. ],\n       [6.5, 9. ]])",
                "bwd": "array([[ 3.25,  4.5 ],\n       [16.  , 22.  ]])",
                "bwd2": "array([ 42.5,  91. , 202.5])",
                "bwd3": "array([ 42.5,  91. , 202.5])",
                "torch": "tensor([[0.5000, 0.5000],\n        [3.0000, 3.0000]])",
            },
        ),
        layers=("WeightedConv",),
    ),
    Definition(
        name="basis_embedding_radial",
        family="gemnet",
        summary="Radial basis times a weight: BasisEmbedding without a spherical part.",
        formulas=(
            "rad_W1 = rad_basis weight^T",
            "rad_basis = g weight; weight = g^T rad_basis",
            "bilinear, by polarisation: grad_rad_W1 = gg_rad_basis weight^T + rad_basis gg_weight^T; "
            "rad_basis = g gg_weight; weight = g^T gg_rad_basis",
        ),
        source=GEMNET,
        inputs=(RAD_BASIS, Array("weight", "interm num_radial", "Weight of BasisEmbedding.", 1)),
        outputs=(Array("rad_W1", "num_edges interm", "Embedded basis of each edge."),),
        terms="num_edges+num_radial+interm",
        operations=_format_operation_counts("num_edges*num_radial*interm", 2, 4, 8),
        example=DocstringExample(
            ("basis, w = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.5, 1.0]])",),
            "basis, w",
            {
                "fwd": "array([[2.5],\n       [5.5]])",
                "bwd": "array([[1.25, 2.5 ],\n       [2.75, 5.5 ]])",
                "bwd2": "array([[52., 98.]])",
                "bwd3": "array([[52., 98.]])",
                "torch": "tensor([[0.5000, 1.0000],\n        [0.5000, 1.0000]])",
            },
        ),
        layers=("BasisEmbedding",),
    ),
    Definition(
        name="basis_embedding_spherical",
        family="gemnet",
        summary="Radial basis times a weight for each spherical function: BasisEmbedding's first factor.",
        formulas=(
            "rad_W1 = (rad_basis weight.reshape(num_radial, S*interm)).reshape(num_edges, interm, S): a reshape of "
            "memory in the order (S, interm), not a transpose",
            "the same product backwards, through the same reshape",
            "bilinear, by polarisation",
        ),
        source=GEMNET,
        inputs=(RAD_BASIS, SPHERICAL_WEIGHT),
        outputs=(Array("rad_W1", "num_edges interm num_spherical", "Embedded radial basis of each edge."),),
        terms="num_edges+num_radial+interm*num_spherical",
        operations=_format_operation_counts("num_edges*num_radial*interm*num_spherical", 2, 4, 8),
        example=DocstringExample(
            ("basis, w = np.array([[2.0]]), np.arange(4.0).reshape(1, 2, 2)",),
            "basis, w",
            {
                "fwd": "array([[[0., 2.],\n        [4., 6.]]])",
                "bwd": "array([[28.]])",
                "bwd2": "array([[[ 0.,  8.],\n        [16., 24.]]])",
                "bwd3": "array([[[ 0.,  8.],\n        [16., 24.]]])",
                "torch": "tensor([[6.]])",
            },
        ),
        layers=("BasisEmbedding",),
    ),
    Definition(
        name="basis_embedding_triplets",
        family="gemnet",
        summary="Embedded radial and spherical basis of each triplet: BasisEmbedding with a spherical basis.",
        formulas=(
            "rad_W1[t,c] = sum_s R[edge(t),c,s] sph_basis[t,s], R = basis_embedding_spherical(rad_basis, weight)",
            "sph_basis[t,s] = sum_c g[t,c] R[edge(t),c,s]; rad_basis and weight from the gradient of R, "
            "sum over t of e of g[t,c] sph_basis[t,s]",
            "trilinear, by polarisation",
        ),
        source=GEMNET,
        inputs=(
            RAD_BASIS,
            SPHERICAL_WEIGHT,
            Array("sph_basis", "num_triplets num_spherical", "Circular or spherical basis of each triplet.", 1),
        ),
        outputs=(Array("rad_W1", "num_triplets interm", "Embedded basis of each triplet."),),
        graph="triplets",
        terms="num_triplets+num_edges+num_radial+interm*num_spherical",
        operations=_format_operation_counts("(num_edges*num_radial+num_triplets)*interm*num_spherical", 2, 6, 18),
        example=DocstringExample(
            (
                "triplets = trigraph.Segments(np.array([1, 0, 1]), 2)",
                "basis, w = np.array([[1.0, 2.0], [3.0, 4.0]]), np.arange(4.0).reshape(2, 2, 1)",
                "sph = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])",
            ),
            "basis, w, sph, triplets",
            {
                "fwd": "array([[ 8.],\n       [ 7.],\n       [23.]])",
                "bwd": "array([[  7.,  21.],\n       [ 23., 131.]])",
                "bwd2": "array([[ 256.,  456.],\n       [  56.,   91.],\n       [ 736., 1311.]])",
                "bwd3": "array([[ 256.,  456.],\n       [  56.,   91.],\n       [ 736., 1311.]])",
                "torch": "tensor([[1., 3.],\n        [1., 7.]])",
            },
        ),
        layers=("BasisEmbedding",),
    ),
    Definition(
        name="interaction_bilinear",
        family="gemnet",
        summary="Efficient bilinear interaction of GemNet-OC: sums of triplets or quadruplets for each edge or atom.",
        formulas=(
            "B_e[s,n] = sum over t of e of sph[t,s] m[t,n]; P[c,n] = sum_s rad_W1[e,c,s] B_e[s,n], summed over the "
            "atom's edges if atoms are given; m_ca = weight vec(P), n fastest",
            "the gradient of sum grad_m_ca m_ca",
            "multilinear, by polarisation",
        ),
        source=GEMNET,
        inputs=(
            Array("rad_W1", "num_edges interm num_spherical", "Embedded radial basis of each edge.", 1),
            Array("sph", "num_triplets num_spherical", "Circular or spherical basis of each triplet.", 1),
            Array("m", "num_inputs emb_in", "Embedding of each triplet, or of each row to which idx_in refers.", 1),
            Array("weight", "emb_out interm*emb_in", "Weight of the bilinear layer, emb_in fastest.", 1),
        ),
        outputs=(Array("m_ca", "num_outputs emb_out", "Embedding of each edge or atom."),),
        graph="bilinear",
        terms="num_triplets+num_edges+num_spherical*interm+interm*emb_in+emb_out",
        operations=_format_operation_counts(BILINEAR_TERMS, 2, 6, 24),
        settings=({"atoms": None, "idx_in": None}, {}, {"atoms": None}, {"idx_in": None}),
        example=DocstringExample(
            (
                "triplets = trigraph.Segments(np.array([0, 0]), 1)",
                "basis, sph = np.array([[[1.0, 2.0]]]), np.array([[1.0, 0.0], [0.5, 1.0]])",
                "m, w = np.array([[1.0], [2.0]]), np.array([[2.0]])",
            ),
            "basis, sph, m, w, triplets",
            {
                "fwd": "array([[12.]])",
                "bwd": "array([[[48., 48.]]])",
                "bwd2": "array([[120.]])",
                "bwd3": "array([[120.]])",
                "torch": "tensor([[[4., 4.]]])",
            },
        ),
        layers=("EfficientInteractionBilinear",),
    ),
)

FAMILIES = tuple(dict.fromkeys(spec.family for spec in DEFINITIONS))
ORDERS = ("fwd", "bwd", "bwd2")
OPERATORS: dict[str, Operator] = {
    f"{spec.name}_{suffix}": Operator(f"{spec.name}_{suffix}", order, spec)
    for spec in DEFINITIONS
    for order, suffix in enumerate(ORDERS)
} | {
    f"{spec.name}_{r.suffix}": Operator(f"{spec.name}_{r.suffix}", 2, spec, r)
    for spec in DEFINITIONS
    for r in spec.restrictions
}
# The vector-Jacobian products of bwd2. The fast path implements some of them (`Definition.has_native_bwd3`); for the
# others, backends call lower orders (`trigraph.backends.third`).
THIRD: dict[str, Operator] = {f"{spec.name}_bwd3": Operator(f"{spec.name}_bwd3", 3, spec) for spec in DEFINITIONS}
NAMED = OPERATORS | THIRD  # every operator by name


# One function per order, which selects among the three forms of GemNet-OC's basis embedding
# (`trigraph.backends.forms`).
BASIS_EMBEDDING = Definition(
    name="basis_embedding",
    family="gemnet",
    summary="Embed a radial basis and, optionally, a circular or spherical one: GemNet-OC's BasisEmbedding, ragged.",
    formulas=(
        "basis_embedding_radial for a weight of rank 2, basis_embedding_spherical for a weight of rank 3, and "
        "basis_embedding_triplets if sph_basis and triplets are given",
        "the gradient of sum grad_rad_W1 rad_W1",
        "multilinear, by polarisation",
    ),
    source=GEMNET,
    inputs=(
        RAD_BASIS,
        replace(SPHERICAL_WEIGHT, doc="Weight of BasisEmbedding; (interm, num_radial) without a spherical part."),
        Array("sph_basis", "num_triplets num_spherical", "Basis of each triplet.", 1, optional=True),
    ),
    outputs=(
        Array("rad_W1", "num_triplets interm", "Without `sph_basis` (num_edges, interm) or (num_edges, interm, S)."),
    ),
    graph="triplets or none",
    terms="num_triplets+num_edges+num_radial+interm*num_spherical",
    operations=_format_operation_counts("(num_edges*num_radial+num_triplets)*interm*num_spherical", 2, 6, 18),
    example=DocstringExample(
        ("basis, w = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.5, 1.0]])",),
        "basis, w",
        {
            "fwd": "array([[2.5],\n       [5.5]])",
            "bwd": "array([[1.25, 2.5 ],\n       [2.75, 5.5 ]])",
            "bwd2": "array([[52., 98.]])",
            "torch": "tensor([[0.5000, 1.0000],\n        [0.5000, 1.0000]])",
        },
    ),
    layers=("BasisEmbedding",),
)
OVER_FORMS: dict[str, Operator] = {
    f"basis_embedding_{suffix}": Operator(f"basis_embedding_{suffix}", order, BASIS_EMBEDDING)
    for order, suffix in enumerate(ORDERS)
}


@cache
def result_type(name: str) -> type[Any]:
    """Return the NamedTuple class of an operator's results, with fields in table order; None marks a missing field."""
    typename = "".join(part.capitalize() for part in name.split("_"))
    cls = namedtuple(typename, [f.name for f in (NAMED | OVER_FORMS)[name].fields])  # type: ignore[misc]
    cls.__module__ = "trigraph.results"  # the module in which pickle finds the class
    return cls

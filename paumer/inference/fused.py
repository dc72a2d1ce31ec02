"""An exported network made faster for ONNX Runtime: each attention as one operation."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto


def fuse_attention(proto: "ModelProto") -> "ModelProto":
    """An ONNX graph with each attention as one operation of ONNX Runtime's.

    What is fused is what torch's exporter makes of timm's attention: softmax between two products
    whose queries, keys and values are the thirds of one linear layer, untouched but for the usual
    scale. Others, such as rotary ones, stay as they are.
    """
    from onnxscript.rewriter import pattern, rewrite

    def attention(op: Any, linear: Any, query_scale: Any, key_scale: Any) -> Any:
        shape = pattern.ANY_VALUE
        thirds = op.Reshape(linear, shape, _outputs=["thirds"])
        turned = op.Transpose(thirds, perm=[2, 0, 3, 1, 4])
        q, k, v = (op.Squeeze(op.Slice(turned, [i], [i + 1], [0]), [0]) for i in range(3))
        k = op.Reshape(op.Transpose(op.Reshape(k, shape), perm=[0, 2, 1]), shape)
        scores = op.MatMul(op.Mul(q, query_scale), op.Mul(k, key_scale))
        mixed = op.MatMul(op.Softmax(scores, axis=-1), v)
        return op.Reshape(op.Transpose(mixed, perm=[0, 2, 1, 3]), shape)

    def has_usual_scale(
        _: Any, thirds: Any, query_scale: Any, key_scale: Any, **__: object
    ) -> bool:
        scales = [scale.const_value for scale in (query_scale, key_scale)]
        if thirds.shape is None or None in scales:
            return False
        # Each is the fourth root of 1 / head size.
        return all(abs(scale.numpy().item() ** 4 * thirds.shape[4] - 1) < 1e-4 for scale in scales)

    def fused(op: Any, linear: Any, thirds: Any, **_: object) -> Any:
        parts = op.Split(linear, num_outputs=3, axis=2, _outputs=3)
        heads = thirds.shape[3]
        return op.MultiHeadAttention(*parts, num_heads=heads, _domain="com.microsoft")

    # Other nodes still use the shapes of some: what nothing uses any longer is removed at the end.
    rule = pattern.RewriteRule(attention, fused, has_usual_scale, remove_nodes=False)
    return rewrite(proto, pattern_rewrite_rules=[rule])

"""The check of uploaded ONNX files: which operators they may use, and what else they must not contain.

It runs in the child process (`onnx_child.py`), so that a hostile file cannot harm the service.
"""

ALLOWED = {
    "": """Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization BitShift BitwiseAnd
    BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu CenterCropPad Clip Col2Im Compress Concat Constant
    ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Det Div Dropout
    DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu
    Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish
    Hardmax Identity InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log
    LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul
    Neg NonZero Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN Range
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare RegexFullMatch Relu Reshape Resize RotaryEmbedding Round ScatterElements ScatterND Selu Shape Shrink
    Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze StringConcat
    StringNormalizer StringSplit Sub Sum Swish Tan Tanh TfIdfVectorizer ThresholdedRelu Tile TopK Transpose Trilu Unique
    Unsqueeze Upsample Where Xor""",
    "ai.onnx.ml": """ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer LabelEncoder LinearClassifier
    LinearRegressor Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler TreeEnsemble TreeEnsembleClassifier
    TreeEnsembleRegressor""",
    "com.microsoft": "Attention BiasGelu EmbedLayerNormalization FastGelu FusedMatMul Gelu LayerNormalization "
    "MurmurHash3 SkipLayerNormalization Tokenizer",
}
"""Operators that an encoder may use, by domain: no loops, no branches, no random numbers, no custom code."""
OPERATORS = {(domain, name) for domain, names in ALLOWED.items() for name in names.split()}
MAX_NODES = 100_000
ATTRIBUTES = {"name", "doc_string", "type", "f", "i", "s", "t", "floats", "ints", "strings", "tensors"}
"""Fields of attributes that an encoder may use: no graphs, no sparse tensors, no types."""


class Refused(Exception):
    """A file or a request that the process does not accept; the message is for the user."""


def check_file(content: bytes) -> bytes:
    """Refuse a file that is malformed, or that uses anything that is not on the list of operators.

    Returns what was checked, and nothing else that the file may contain.
    """
    import onnx
    from google.protobuf.message import DecodeError

    if content[4:8] == b"ORTM":
        raise Refused("The file has the format of onnxruntime. Save the model in the ONNX format.")
    try:
        model = onnx.ModelProto.FromString(content)
    except (DecodeError, RuntimeError) as error:
        raise Refused("The file is not an ONNX model.") from error
    if not model.HasField("graph") or not model.graph.output:
        raise Refused("The file is not an ONNX model, or has no outputs.")
    if len(model.functions):
        raise Refused("The model has local functions. Inline them (onnx.inliner.inline_local_functions).")
    if len(model.training_info):
        raise Refused("The model contains training information. Export it for inference.")
    if len(model.graph.node) > MAX_NODES:
        raise Refused(f"The model has {len(model.graph.node)} nodes; the limit is {MAX_NODES}.")
    if len(model.graph.sparse_initializer):
        raise Refused("The model has sparse tensors, which are not allowed in encoders.")
    tensors = [*model.graph.initializer]
    kind = onnx.AttributeProto
    kinds = {kind.FLOAT, kind.INT, kind.STRING, kind.TENSOR, kind.FLOATS, kind.INTS, kind.STRINGS, kind.TENSORS}
    for node in model.graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) not in OPERATORS:
            name = f"{domain}.{node.op_type}" if domain else node.op_type
            raise Refused(f"The operator {name[:100]!r} is not allowed in encoders.")
        for attribute in node.attribute:
            other = {field.name for field, _ in attribute.ListFields()} - ATTRIBUTES
            if other or attribute.type not in kinds:
                raise Refused(f"The operator {node.op_type!r} has an attribute with a graph, type or sparse tensor.")
            tensors += [attribute.t, *attribute.tensors]
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL or len(tensor.external_data):
            raise Refused("The model refers to data in other files. Save it as a single file.")
    model.DiscardUnknownFields()
    checked: bytes = model.SerializeToString()
    return checked

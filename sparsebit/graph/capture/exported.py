from typing import Any
def from_exported(program: Any) -> Any: raise NotImplementedError
def from_model(model: Any, args: Any, kwargs: Any) -> Any: raise NotImplementedError

"""`tf.image`: what input pipelines do to images, on `jax.image`."""

from typing import Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.compat.tf.images import ResizeMethod as ResizeMethod
from jaxtribute._src.addons.compat.tf.images import adjust_brightness as adjust_brightness
from jaxtribute._src.addons.compat.tf.images import adjust_contrast as adjust_contrast
from jaxtribute._src.addons.compat.tf.images import adjust_saturation as adjust_saturation
from jaxtribute._src.addons.compat.tf.images import central_crop as central_crop
from jaxtribute._src.addons.compat.tf.images import convert_image_dtype as convert_image_dtype
from jaxtribute._src.addons.compat.tf.images import crop_to_bounding_box as crop_to_bounding_box
from jaxtribute._src.addons.compat.tf.images import flip_left_right as flip_left_right
from jaxtribute._src.addons.compat.tf.images import flip_up_down as flip_up_down
from jaxtribute._src.addons.compat.tf.images import grayscale_to_rgb as grayscale_to_rgb
from jaxtribute._src.addons.compat.tf.images import pad_to_bounding_box as pad_to_bounding_box
from jaxtribute._src.addons.compat.tf.images import per_image_standardization as per_image_standardization
from jaxtribute._src.addons.compat.tf.images import random_brightness as random_brightness
from jaxtribute._src.addons.compat.tf.images import random_contrast as random_contrast
from jaxtribute._src.addons.compat.tf.images import random_crop as random_crop
from jaxtribute._src.addons.compat.tf.images import random_flip_left_right as random_flip_left_right
from jaxtribute._src.addons.compat.tf.images import random_flip_up_down as random_flip_up_down
from jaxtribute._src.addons.compat.tf.images import random_saturation as random_saturation
from jaxtribute._src.addons.compat.tf.images import resize as resize
from jaxtribute._src.addons.compat.tf.images import resize_with_crop_or_pad as resize_with_crop_or_pad
from jaxtribute._src.addons.compat.tf.images import rgb_to_grayscale as rgb_to_grayscale
from jaxtribute._src.addons.compat.tf.images import rot90 as rot90
from jaxtribute._src.addons.compat.tf.images import stateless_random_brightness as stateless_random_brightness
from jaxtribute._src.addons.compat.tf.images import stateless_random_contrast as stateless_random_contrast
from jaxtribute._src.addons.compat.tf.images import stateless_random_crop as stateless_random_crop
from jaxtribute._src.addons.compat.tf.images import stateless_random_flip_left_right as stateless_random_flip_left_right
from jaxtribute._src.addons.compat.tf.images import stateless_random_flip_up_down as stateless_random_flip_up_down
from jaxtribute._src.addons.compat.tf.images import stateless_random_saturation as stateless_random_saturation
from jaxtribute._src.addons.compat.tf.images import total_variation as total_variation


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.image", name)
